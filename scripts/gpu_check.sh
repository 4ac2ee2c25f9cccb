#!/usr/bin/env bash
# Is this GPU computed with rightly, and is it well used? On a machine with a GPU:
#   scripts/gpu_check.sh [--gpu N] [--quick] [--full] [--no-tests] [--no-sanitizer] [--output DIR]
#                        [--disk-dir DIR] [--host-memory SIZE] [--device cpu]
# Needs the programs and their tests, from a bundle (scripts/gpu_bundle) or a tree with build/cuda
# (scripts/build cuda; what `cmake --install` installs has no tests); bash and python3; NVIDIA's driver
# with nvidia-smi, and cuBLAS 13; and compute-sanitizer, which comes with CUDA's toolkit.
# First the machine is profiled, by which the benchmarks are planned: copies, matrix products,
# attention, disk. Then all conformance tests of the ops and all end-to-end tests on the device, the
# small ones under compute-sanitizer; then benchmarks, each with the ceilings and the bound measured in
# its own process. Everything runs, whatever fails before it; the exit status is 1 if anything did, or
# could not run and nobody said so. DIR (by default gpu-check) gets results.json, with everything in it,
# summary.txt with its table, which is printed at the end, and one JSON file a benchmark, profile.json
# and the logs.
#   --gpu N         which GPU, as nvidia-smi numbers them; by default the first, or what
#                   CUDA_VISIBLE_DEVICES says
#   --quick         no opt-30b
#   --full          opt-30b with 512 new tokens to the end, instead of projected from 24 decode steps
#   --no-tests      profile and benchmarks only
#   --no-sanitizer  nothing under compute-sanitizer; without this flag its absence is a failure
#   --disk-dir      of what spills to disk; by default in DIR
#   --host-memory   by default nine tenths of what is available, at most 200 GiB
#   --device cpu    rehearses all this without a GPU, on opt-125m: says nothing about one
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
reporter=$here/gpu_check_report.py
libraries=
if [[ -d $here/bin ]]; then
  bin=$here/bin tests=$here/bin share=$here/share/spillway libraries=$here/lib
else
  here=$(dirname "$here")
  bin=$here/build/cuda tests=$bin/tests share=$here
fi

help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
quick='' full='' run_tests=1 run_sanitizer=1 output=gpu-check disk='' memory='' device=cuda gpu='' arguments=$*
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=1 ;;
    --full) full=1 ;;
    --no-tests) run_tests= ;;
    --no-sanitizer) run_sanitizer= ;;
    --gpu) gpu=${2:?--gpu needs a number}; shift ;;
    --output) output=${2:?--output needs a folder}; shift ;;
    --disk-dir) disk=${2:?--disk-dir needs a folder}; shift ;;
    --host-memory) memory=${2:?--host-memory needs a size}; shift ;;
    --device) device=${2:?--device needs cuda or cpu}; shift ;;
    -h | --help) help; exit 0 ;;
    *) help >&2; exit 2 ;;
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
if ! command -v python3 > /dev/null; then
  echo "gpu_check.sh: python3, which writes the results, is not on this machine" >&2
  exit 2
fi
if [[ $device == cuda ]]; then
  # The only one that the programs see: their first.
  [[ -z $gpu && -n ${CUDA_VISIBLE_DEVICES:-} ]] || export CUDA_VISIBLE_DEVICES=${gpu:-0} CUDA_DEVICE_ORDER=PCI_BUS_ID
  # Tests run on every device there is: that this is one of them.
  export SPILLWAY_TEST_CUDA=required
  smi=(nvidia-smi -i "$CUDA_VISIBLE_DEVICES")
  if ! command -v nvidia-smi > /dev/null || ! "${smi[@]}" -L > /dev/null 2>&1; then
    echo "gpu_check.sh: nvidia-smi sees no GPU $CUDA_VISIBLE_DEVICES on this machine" >&2
    exit 2
  fi
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
summary=$output/summary.txt steps=$output/steps.tsv about=$output/about.tsv
rm -f "$steps" "$about" "$output/results.json" "$output/profile.json"
failed=0
# fact NAME VALUE: about the machine, into summary and results.
fact() {
  printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >> "$about"
  echo "$2" >> "$summary"
}
: > "$summary"
fact date "$(date -u +%Y-%m-%dT%H:%MZ)"
if [[ $device == cuda ]]; then
  fact gpu "$("${smi[@]}" --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader)"
else
  fact gpu "A rehearsal on the CPU: no figure here is a GPU's"
fi
fact host "$(nproc) CPU cores, $memory of host memory"
fact spillway "$("${engine[@]}" --version)"
fact arguments "gpu_check.sh $arguments"

# step NAME KIND RESULT DETAIL: a row of the table; since the last `begin`. Any result but "passed"
# and "skipped" fails the check.
begin() { begun=$SECONDS; }
step() {
  local name=$1 kind=$2 result=$3 detail=${4:-}
  detail=${detail//[$'\t\n']/ }
  [[ $result == passed || $result == skipped ]] || failed=1
  printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$kind" "$result" "$((SECONDS - begun))" "$detail" >> "$steps"
  [[ $kind == bench && $result == passed ]] || echo "$name: $result${detail:+ ($detail)}"
}

# tests NAME COMMAND...: a run that checked nothing has failed, too; the log's last lines say how
# much it did.
step_seconds=3600
tests() {
  local name=$1 counted status=0
  shift
  begin
  timeout "$step_seconds" "$@" -w NoTests > "$output/$name.log" 2>&1 || status=$?
  counted=$(grep -Eo '[1-9][0-9]* assertions? in [0-9]+ test cases?' "$output/$name.log" | tail -n 1)
  if [[ $status -eq 0 && -n $counted ]]; then
    step "$name" tests passed "$counted"
    return
  fi
  case $status in
    0) step "$name" tests FAILED "nothing was tested, see $output/$name.log" ;;
    124) step "$name" tests FAILED "no end within $step_seconds s, see $output/$name.log" ;;
    *) step "$name" tests FAILED "exit status $status, see $output/$name.log" ;;
  esac
  grep -A 14 -E 'FAILED|=========' "$output/$name.log" | head -n 40
}

# bench NAME ARGUMENTS...: `spillway bench` on dummy weights.
bench() {
  local name=$1 line
  shift
  begin
  if ! "${engine[@]}" bench "$@" "${place[@]}" --host-memory "$memory" --dummy-weights --json > "$output/$name.json" 2> "$output/$name.log"; then
    step "$name" bench FAILED "$(tail -n 1 "$output/$name.log")"
  elif line=$(python3 "$reporter" bench "$name" "$output/$name.json" 2>> "$output/$name.log"); then
    step "$name" bench passed
    echo "$line"
  else
    step "$name" bench FAILED "its report cannot be written: $(tail -n 1 "$output/$name.log")"
  fi
}

# Without it plans are a rule of thumb, and the CPU never attends.
begin
if "${engine[@]}" profile "${place[@]}" --output "$output/profile.json" > "$output/profile.txt" 2> "$output/profile.log"; then
  cat "$output/profile.txt" >> "$summary"
  step profile profile passed
else
  step profile profile FAILED "$(tail -n 1 "$output/profile.log")"
fi

if [[ -n $run_tests ]]; then
  tests ops "${loader[@]}" "$tests/kernels_test"
  tests end-to-end "${loader[@]}" "$tests/endtoend_test"
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
  begin
  if [[ -z $run_sanitizer ]]; then
    step compute-sanitizer tests skipped "--no-sanitizer"
  elif [[ -n $sanitizer ]]; then
    # The cases with the tag: small, and between them every kernel of ours. `env` starts the program,
    # so the tool follows it there.
    for tool in memcheck racecheck; do
      # A call's "not ready" is an answer of the runtime, which is asked after each piece of work,
      # and errors are tested for: what kernels do to memory is looked for, not what calls return.
      options=()
      [[ $tool == racecheck ]] || options=(--report-api-errors no)
      for program in kernels_test endtoend_test; do
        tests "$tool-$program" "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 1 \
          --target-processes all "${loader[@]}" "$tests/$program" "[sanitizer]"
      done
    done
  elif [[ $device == cpu ]]; then
    step compute-sanitizer tests skipped "a rehearsal does without"
  else
    step compute-sanitizer tests MISSING "it is not on this machine, so nothing ran under it: install it, or say --no-sanitizer"
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
    begin
    if line=$(python3 "$reporter" times "opt-30b-16GB-512+$tokens" "$output/opt-30b-16GB-512+$tokens-"{full,h2o}.json 2>&1); then
      step "opt-30b-16GB-512+$tokens" times passed "${line#*: }"
    else
      step "opt-30b-16GB-512+$tokens" times FAILED "${line##*$'\n'}"
    fi
  done
fi

echo >> "$summary"
python3 "$reporter" table "$output" >> "$summary" || failed=1
if [[ $failed -eq 0 ]]; then echo "Everything passed."; else echo "Not everything passed."; fi >> "$summary"
echo
cat "$summary"
exit $failed
