#!/usr/bin/env python3
"""What scripts/kernel_report.py reads of ptxas, and when it takes a report for outdated."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import kernel_report  # noqa: E402  (the path comes first)

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3onePf' for 'sm_90'
ptxas info    : Function properties for _Z3onePf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4224 bytes smem
ptxas info    : Compiling entry function '_Z3twoPf' for 'sm_90'
ptxas info    : Function properties for _Z3twoPf
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
"""

LOG = f"""[1/3] Building CXX object CMakeFiles/a.dir/one.cc.o
[2/3] Building CUDA object CMakeFiles/a.dir/kernels/cuda/two.cu.o
{PTXAS}ptxas info    : Compiling entry function '_Z3onePf' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers
[3/3] Linking CXX executable a
"""


def report(release="13.0", registers="40 | 38", kernel="one", rest=""):
    """A report of one kernel."""
    return f"`scripts/kernel_report.py`, nvcc {release}, `-O3`.\n\n| a.cu | `{kernel}` | {registers} | 0 |\n{rest}"

# As nvdisasm prints it: a loop within a loop, and a jump ahead.
LISTING = """//--------------------- .text._Z3onePf
	.section	.text._Z3onePf,"ax",@progbits
.text._Z3onePf:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E R2, desc[UR8][R8.64] ;
.L_x_0:
        /*0020*/                   SHFL.IDX PT, R3, R2, R4, 0x1f ;
        /*0030*/                   FFMA R5, R3, R3, R5 ;
        /*0040*/              @!P0 BRA `(.L_x_0) ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/               @P1 BRA `(.L_x_2) ;
.L_x_2:
        /*0070*/                   EXIT ;
"""


class KernelReport(unittest.TestCase):
    """Its parts."""

    def test_registers_spills_and_shared_memory_are_read(self):
        self.assertEqual(list(kernel_report.parse(PTXAS)), [("_Z3onePf", 32, 0, 4224), ("_Z3twoPf", 255, 20, 0)])

    def test_what_ptxas_says_is_found_in_the_log_of_a_build(self):
        texts = kernel_report.texts_of(LOG)
        self.assertEqual(list(texts), [("two.cu", "sm_90"), ("two.cu", "sm_80")])
        self.assertEqual(list(kernel_report.parse(texts["two.cu", "sm_90"])), list(kernel_report.parse(PTXAS)))
        self.assertEqual(list(kernel_report.parse(texts["two.cu", "sm_80"])), [("_Z3onePf", 30, 0, 0)])
        self.assertEqual(kernel_report.texts_of(LOG.replace("CUDA object", "CXX object")), {})

    def test_the_innermost_loops_are_found_in_machine_code(self):
        ((name, loops),) = kernel_report.loops_of(LISTING)
        self.assertEqual(name, "_Z3onePf")
        (loop,) = loops
        self.assertEqual([instruction.split()[0] for instruction in loop], ["SHFL.IDX", "FFMA", "@!P0"])

    def test_a_pass_is_counted_on_the_way_through_what_marks_it(self):
        code = ["LDC R1", "@!P0 BRA `(.L_x_1)", "I2FP R2", "CALL.REL.NOINC `(divide)", "@P1 BRA `(.L_x_1)", "I2FP R3", "BRA `(.L_x_2)",
                "SHF R2", "HADD2 R2", "@P0 BRA `(.L_x_0)"]
        loop = kernel_report.Loop(code, {1: 7, 4: 7, 6: 9, 9: 0}, 0, 10)
        self.assertEqual(loop.way("SHF"), 5)
        self.assertEqual(loop.way("HADD2"), 5)
        # What calls is nobody's way; without the call it is six instructions to the second I2FP.
        self.assertEqual(loop.way("I2FP"), 5)
        code[3] = "FFMA R4"
        self.assertEqual(kernel_report.Loop(code, {1: 7, 4: 7, 6: 9, 9: 0}, 0, 10).way("I2FP"), 8)

    def test_a_report_falls_into_kernels_and_hot_loops(self):
        loops = "\n".join(kernel_report.loops_section(["| a.cu | `one` | number | 8 | 84 | 10.5 |"])) + "\n"
        self.assertEqual(kernel_report.parts_of(report() + loops), (report(), loops))
        self.assertEqual(kernel_report.parts_of(report()), (report(), ""))

    def test_columns_of_architectures_are_left_out(self):
        loops = "\n".join(kernel_report.loops_section(["| a.cu | `one` | number | 8 | 84 | 10.5 |"])) + "\n"
        row = "| source | kernel | sm_75{} | static shared |\n|---|---|---:|{}---:|\n| a.cu | `one` | 40{} | 0 |\n"
        one, two = row.format("", "", ""), row.format(" | sm_90", "---:|", " | 99, spills 8")
        self.assertEqual(kernel_report.without_columns("# Head\n\n" + two + loops, ["sm_90"]), "# Head\n\n" + one + loops)
        self.assertEqual(kernel_report.without_columns(two, []), two)

    def test_the_same_report_is_current(self):
        self.assertEqual(kernel_report.difference(report(), report()), [])

    def test_another_number_of_registers_is_a_difference_with_the_same_compiler_only(self):
        self.assertTrue(kernel_report.difference(report(), report(registers="40 | 39")))
        self.assertEqual(kernel_report.difference(report(), report(release="13.1", registers="41 | 39")), [])

    def test_spills_and_other_kernels_are_differences_with_any_compiler(self):
        for release in ("13.0", "13.1"):
            changed = {"registers": "40, spills 8 | 38"}, {"kernel": "two"}, {"rest": "| b.cu | `more` | 10 | 10 | 0 |\n"}
            for change in changed:
                self.assertTrue(kernel_report.difference(report(), report(release=release, **change)), change)
            spilled = report(registers="40, spills 8 | 38")
            more = report(release=release, registers="40, spills 16 | 38")
            self.assertTrue(kernel_report.difference(spilled, more))


if __name__ == "__main__":
    unittest.main()
