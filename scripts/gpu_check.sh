#!/usr/bin/env bash
# Is this GPU computed with rightly, and is it well used? On a machine with a GPU:
#   scripts/gpu_check.sh [--quick] [--full] [--no-tests] [--output DIR] [--disk-dir DIR]
#                        [--host-memory SIZE] [--device cpu]
# from a bundle (scripts/gpu_bundle) or a tree with build/cuda. First the machine is profiled, by
# which the benchmarks are planned: copies, matrix products, attention, disk. Then all conformance
# tests of the ops and all end-to-end tests on the device, the small ones under compute-sanitizer;
# then benchmarks, each with the ceilings and the bound measured in its own process just before.
# Everything runs, whatever fails before it. DIR (by default gpu-check) gets profile.json, one JSON
# file a benchmark, the logs, and summary.txt, which is printed at the end.
#   --quick        no opt-30b
#   --full         opt-30b with 512 new tokens to the end, instead of projected from 24 decode steps
#   --disk-dir     of what spills to disk; by default in DIR
#   --host-memory  by default nine tenths of what is available, at most 200 GiB
#   --device cpu   rehearses all this without a GPU, on opt-125m: says nothing about one
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
libraries=
if [[ -d $here/bin ]]; then
  bin=$here/bin tests=$here/bin share=$here/share/spillway libraries=$here/lib
else
  here=$(dirname "$here")
  bin=$here/build/cuda tests=$bin/tests share=$here
fi

quick='' full='' run_tests=1 output=gpu-check disk='' memory='' device=cuda
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=1 ;;
    --full) full=1 ;;
    --no-tests) run_tests= ;;
    --output) output=${2:?--output needs a folder}; shift ;;
    --disk-dir) disk=${2:?--disk-dir needs a folder}; shift ;;
    --host-memory) memory=${2:?--host-memory needs a size}; shift ;;
    --device) device=${2:?--device needs cuda or cpu}; shift ;;
    *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
for program in "$bin/spillway" "$tests/kernels_test" "$tests/endtoend_test"; do
  [[ -x $program ]] && continue
  echo "gpu_check.sh: $program is missing; make it with 'scripts/build cuda' or scripts/gpu_bundle" >&2
  exit 2
done

# Folders where cuBLAS may lie, best first: the toolkit's that is named, nvcc's, the usual ones,
# what the loader knows, wheels of this Python.
cuda_folders() {
  local root
  for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" \
    "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /)")")")" \
    /usr/local/cuda /usr/local/cuda-* /opt/cuda; do
    [[ -n $root ]] && printf '%s\n' "$root/lib64" "$root/lib" "$root/targets/x86_64-linux/lib"
  done
  { ldconfig -p || /sbin/ldconfig -p; } 2> /dev/null | sed -n 's/.*=> \(.*\)\/libcublas\.so.*/\1/p'
  python3 -c 'import glob, sys
for path in sys.path: print(*glob.glob(path + "/nvidia/*/lib"), sep="\n")' 2> /dev/null
}
# The bundle's libraries are for its programs alone: python3 and nvidia-smi have their own.
loader=(env)
use_libraries() {
  [[ -z $libraries ]] || loader=(env "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
}
not_found() { "${loader[@]}" ldd "$bin/spillway" "$tests"/*_test 2>&1 | grep 'not found' | sort -u; }
use_libraries
for library in $(not_found | sed -n 's/^[[:space:]]*\([^[:space:]]*\) => not found.*/\1/p'); do
  while read -r folder; do
    [[ -e $folder/$library ]] || continue
    [[ :$libraries: == *:"$folder":* ]] || libraries+=${libraries:+:}$folder
    break
  done < <(cuda_folders)
done
use_libraries
missing=$(not_found)
if [[ -n $missing ]]; then
  echo "gpu_check.sh: the programs cannot start on this machine:" >&2
  echo "$missing" >&2
  echo "Looked for CUDA's libraries in: $(cuda_folders | sort -u | tr '\n' ' ')" >&2
  echo "CUDA_HOME names another toolkit; 'pip install nvidia-cublas' has cuBLAS alone." >&2
  exit 2
fi
if [[ $device == cuda ]] && { ! command -v nvidia-smi > /dev/null || ! nvidia-smi -L > /dev/null 2>&1; }; then
  echo "gpu_check.sh: nvidia-smi sees no GPU on this machine" >&2
  exit 2
fi

# GiB of memory that may be taken: of what is available here, and to this container.
available_gib() {
  local group=/sys/fs/cgroup/memory.max used=/sys/fs/cgroup/memory.current left
  left=$(awk '/^MemAvailable:/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
  if [[ -r $group && $(< "$group") != max ]]; then
    left=$(awk -v left="$left" -v limit="$(< "$group")" -v used="$(< "$used")" \
      '$1 == "inactive_file" || $1 == "active_file" { used -= $2 }
       END { free = limit - used; printf "%.0f", free < left ? free : left }' /sys/fs/cgroup/memory.stat)
  fi
  awk -v left="$left" 'BEGIN { gib = left * 0.9 / 2^30; printf "%d", gib < 200 ? gib : 200 }'
}
[[ -n $memory ]] || memory=$(available_gib)GiB
mkdir -p "$output" "${disk:=$output/scratch}"
output=$(cd "$output" && pwd) disk=$(cd "$disk" && pwd)
export SPILLWAY_SOURCE=$share SPILLWAY_PROGRAM=$bin/spillway
# Profile and benchmarks share a cache, where plans find the profile, by the disk's name.
engine=("${loader[@]}" "SPILLWAY_CACHE=$output/cache" "$bin/spillway")
place=(--device "$device" --disk-dir "$disk")
summary=$output/summary.txt
failed=0
{
  date -u +%Y-%m-%dT%H:%MZ
  if [[ $device == cuda ]]; then
    nvidia-smi --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader
  else
    echo "A rehearsal on the CPU: no figure here is a GPU's"
  fi
  echo "$(nproc) CPU cores, $memory of host memory"
  "${engine[@]}" --version
} > "$summary"

# note LINE: into the summary and on the screen.
note() { echo "$1" | tee -a "$summary"; }

# tests NAME COMMAND...: a run that checked nothing has failed, too; the log's last lines say how
# much it did.
step_seconds=3600
tests() {
  local name=$1 counted status=0
  shift
  timeout "$step_seconds" "$@" -w NoTests > "$output/$name.log" 2>&1 || status=$?
  counted=$(grep -Eo '[1-9][0-9]* assertions? in [0-9]+ test cases?' "$output/$name.log" | tail -n 1)
  if [[ $status -eq 0 && -n $counted ]]; then
    note "$name: passed ($counted)"
    return
  fi
  failed=1
  case $status in
    0) note "$name: FAILED: nothing was tested, see $output/$name.log" ;;
    124) note "$name: FAILED: no end within $step_seconds s, see $output/$name.log" ;;
    *) note "$name: FAILED (exit status $status), see $output/$name.log" ;;
  esac
  grep -A 14 -E 'FAILED|=========' "$output/$name.log" | head -n 40
}

# report NAME FILES...: runs the Python that comes on stdin over the files; its line into the summary.
report() {
  local name=$1 line
  if line=$(python3 - "$@" 2> "$output/$name.report.log"); then
    rm "$output/$name.report.log"
    note "$line"
  else
    failed=1
    note "$name: FAILED: its report cannot be written: $(tail -n 1 "$output/$name.report.log")"
  fi
}

# bench NAME ARGUMENTS...: `spillway bench` on dummy weights, one line in the summary.
bench() {
  local name=$1
  shift
  if ! "${engine[@]}" bench "$@" "${place[@]}" --host-memory "$memory" --dummy-weights --json > "$output/$name.json" 2> "$output/$name.log"; then
    failed=1
    note "$name: FAILED: $(tail -n 1 "$output/$name.log")"
    return
  fi
  report "$name" "$output/$name.json" <<'PYTHON'
import json, sys
run = json.load(open(sys.argv[2]))
rates, decode, plan = run["hardware"], run["time_by_cause"]["decode"], run["plan"]
projected = run["measured"] and f", projected from {run['measured']['decode_steps']} decode steps"
up = rates["host_to_device_bytes_per_second"]
line = (f"{sys.argv[1]}: {run['tokens_per_second']:.1f} tokens/s{projected or ''}, {run['sequences']} sequences of "
        f"{run['prompt_tokens']} + {run['new_tokens']}, decode {run['decode_tokens_per_second']:.1f}, "
        f"prefill {run['prefill_tokens_per_second']:.0f}, efficiency {run['efficiency']:.2f} "
        f"(decode {run['decode_efficiency']:.2f}, prefill {run['prefill_efficiency']:.2f}; bound: {run['bound']['resource']})")
if predicted := run["predicted_tokens_per_second"]:
    line += f", predicted {predicted:.1f}"
if up:
    streamed = decode["host_to_device_bytes"] / decode["seconds"] if decode["seconds"] else 0
    line += (f", link {up / 1e9:.1f} GB/s up, of which decode used {streamed / up:.0%}, "
             f"{rates['device_to_host_bytes_per_second'] / 1e9:.1f} down, device taken "
             f"{run['peak_device_bytes'] / 2**30:.1f} GiB, attention on the {plan['attention']}")
print(line)
PYTHON
}

# Without it plans are a rule of thumb, and the CPU never attends.
if "${engine[@]}" profile "${place[@]}" --output "$output/profile.json" > "$output/profile.txt" 2> "$output/profile.log"; then
  cat "$output/profile.txt" >> "$summary"
else
  failed=1
  note "profile: FAILED: $(tail -n 1 "$output/profile.log")"
fi

if [[ -n $run_tests ]]; then
  tests ops "${loader[@]}" "$tests/kernels_test"
  tests end-to-end "${loader[@]}" "$tests/endtoend_test"
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
  if [[ -n $sanitizer ]]; then
    # The cases with the tag: small, and between them every kernel of ours. `env` starts the program,
    # so the tool follows it there.
    for tool in memcheck racecheck; do
      for program in kernels_test endtoend_test; do
        tests "$tool-$program" "$sanitizer" --tool "$tool" --error-exitcode 1 --target-processes all \
          "${loader[@]}" "$tests/$program" "[sanitizer]"
      done
    done
  else
    note "compute-sanitizer: not on this machine, so nothing ran under it"
  fi
fi

if [[ $device == cpu ]]; then
  bench opt-125m opt-125m --sequences 4 --prompt-tokens 16 --new-tokens 8
  bench opt-125m-h2o opt-125m --sequences 4 --prompt-tokens 16 --new-tokens 8 --kv-rule h2o --decode-steps 3
else
  bench opt-1.3b-resident opt-1.3b --format f16 --sequences 64 --prompt-tokens 128 --new-tokens 64
  bench opt-6.7b-6GiB opt-6.7b --format f16 --device-memory 6GiB --sequences 64 --prompt-tokens 128 --new-tokens 16
  bench opt-6.7b-6GiB-q4 opt-6.7b --format q4 --device-memory 6GiB --sequences 64 --prompt-tokens 128 --new-tokens 16
fi
if [[ $device == cuda && -z $quick ]]; then
  # The papers' machine: OPT-30B on 16 GB (FlexGen, arXiv 2303.06865, section 6; H2O, arXiv 2306.14048, section 5).
  for tokens in 32 512; do
    steps=()
    [[ $tokens -eq 32 || -n $full ]] || steps=(--decode-steps 24)
    for rule in full h2o; do
      keep=(--kv-rule "$rule")
      [[ $rule == full ]] || keep+=(--kv-heavy 0.1 --kv-recent 0.1)
      bench "opt-30b-16GB-512+$tokens-$rule" opt-30b --format f16 --device-memory 16GB --sequences 0 \
        --prompt-tokens 512 --new-tokens "$tokens" "${keep[@]}" "${steps[@]}"
    done
    report "opt-30b-16GB-512+$tokens" "$output/opt-30b-16GB-512+$tokens-"{full,h2o}.json <<'PYTHON'
import json, sys
full, h2o = (json.load(open(name)) for name in sys.argv[2:])
times = h2o["tokens_per_second"] / full["tokens_per_second"]
print(f"{sys.argv[1]}: h2o, 20 % of the cache, has {times:.2f} times the tokens/s of the full cache"
      + (" (projected)" if full["projected"] or h2o["projected"] else ""))
PYTHON
  done
fi

echo
cat "$summary"
exit $failed
