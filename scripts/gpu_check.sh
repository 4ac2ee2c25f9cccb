#!/usr/bin/env bash
# Is this GPU computed with rightly, and is it well used? On a machine with a GPU:
#   scripts/gpu_check.sh [--parts A,B,C] [--seconds N] [--gpu N] [--quick] [--full] [--no-tests]
#                        [--no-sanitizer] [--output DIR] [--disk-dir DIR] [--host-memory SIZE]
#                        [--python PYTHON] [--device cpu]
# Needs the programs and their tests, from a bundle (scripts/gpu_bundle) or a tree with build/cuda
# (scripts/build cuda; what `cmake --install` installs has no tests); bash and python3; NVIDIA's driver
# with nvidia-smi, and cuBLAS 13; and compute-sanitizer, which comes with CUDA's toolkit. No network.
# Its parts, the most valuable first, each with a time of its own:
#   smoke           a small model, to see that anything runs
#   ops             conformance tests of every op
#   profile         copies, matrix products, attention, disk: by it the benchmarks are planned
#   resident        benchmarks of models that the GPU holds, also one sequence at a time
#   trace           the same and streamed weights with a trace: the time of each op
#   stream          benchmarks with 6 GiB of the GPU's memory
#   resident-30b    opt-30b in the GPU's memory, where it fits
#   h2o-30b         opt-30b with 16 GB of it, a fifth of the cache
#   full-30b        the same with all of the cache
#   end-to-end      whole runs of the engine on the GPU, held against the references
#   memcheck, racecheck   the small tests of both kinds under compute-sanitizer, our kernels only
#   torch           with --python: transformers + accelerate beside the resident opt-6.7b
# Everything runs, whatever fails before it; the exit status is 1 if anything did, or could not run
# and nobody said so. DIR (by default gpu-check) gets results.json with everything in it, summary.txt
# with its table, one JSON file a benchmark, profile.json and the logs; results.tar.gz has all of
# these. Both are written anew after every step, so what was measured is there whenever this ends.
#   --parts         only these parts, in this order
#   --seconds N     ends within N seconds: steps get what is left, or are skipped
#   --gpu N         which GPU, as nvidia-smi numbers them; by default the first, or what
#                   CUDA_VISIBLE_DEVICES says
#   --quick         no opt-30b
#   --full          opt-30b with 512 new tokens to the end, instead of projected from 24 decode steps
#   --no-tests      profile and benchmarks only
#   --no-sanitizer  nothing under compute-sanitizer; without this flag its absence is a failure
#   --disk-dir      of what spills to disk; by default in DIR
#   --host-memory   by default nine tenths of what is available, at most 200 GiB; opt-30b within
#                   --seconds has at most 72 GiB, since pinning memory takes time
#   --python        an interpreter with torch, transformers and accelerate, for the part torch
#   --device cpu    rehearses all this without a GPU, on opt-125m: says nothing about one
set -uo pipefail

began=$SECONDS
here=$(cd "$(dirname "$0")" && pwd)
reporter=$here/gpu_check_report.py
libraries= architectures=
if [[ -d $here/bin ]]; then
  bin=$here/bin tests=$here/bin share=$here/share/spillway libraries=$here/lib
  [[ ! -r $here/architectures ]] || architectures=$(< "$here/architectures")
else
  here=$(dirname "$here")
  bin=$here/build/cuda tests=$bin/tests share=$here
  architectures=$(sed -n 's/^CMAKE_CUDA_ARCHITECTURES:[A-Z]*=//p' "$bin/CMakeCache.txt" 2> /dev/null)
fi

help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
all_parts=(smoke ops profile resident trace stream resident-30b h2o-30b full-30b end-to-end memcheck racecheck torch)
quick='' full='' run_tests=1 run_sanitizer=1 output=gpu-check disk='' memory='' device=cuda gpu='' arguments=$*
seconds='' parts=() python=''
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=1 ;;
    --full) full=1 ;;
    --no-tests) run_tests= ;;
    --no-sanitizer) run_sanitizer= ;;
    --parts) IFS=, read -ra parts <<< "${2:?--parts needs names, with commas between}"; shift ;;
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    --gpu) gpu=${2:?--gpu needs a number}; shift ;;
    --output) output=${2:?--output needs a folder}; shift ;;
    --disk-dir) disk=${2:?--disk-dir needs a folder}; shift ;;
    --host-memory) memory=${2:?--host-memory needs a size}; shift ;;
    --python) python=${2:?--python needs an interpreter}; shift ;;
    --device) device=${2:?--device needs cuda or cpu}; shift ;;
    -h | --help) help; exit 0 ;;
    *) help >&2; exit 2 ;;
  esac
  shift
done
if [[ -n $seconds && ! $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "gpu_check.sh: --seconds needs a number of seconds, not $seconds" >&2
  exit 2
fi
asked=${#parts[@]}
[[ $asked -gt 0 ]] || parts=("${all_parts[@]}")
for part in "${parts[@]}"; do
  [[ " ${all_parts[*]} " == *" $part "* ]] && continue
  echo "gpu_check.sh: there is no part $part, only ${all_parts[*]}" >&2
  exit 2
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
  if ! command -v nvidia-smi > /dev/null || ! "${smi[@]}" > /dev/null 2>&1; then
    echo "gpu_check.sh: nvidia-smi sees no GPU $CUDA_VISIBLE_DEVICES on this machine" >&2
    exit 2
  fi
  # Before anything runs in vain.
  capability=$("${smi[@]}" --query-gpu=compute_cap --format=csv,noheader)
  if [[ -n $architectures ]] && ! python3 "$reporter" runs-on "$architectures" "$capability"; then
    echo "gpu_check.sh: this GPU has compute capability $capability, these programs are for $architectures;" >&2
    echo "build them for it: scripts/gpu_bundle --arch ${capability/./}" >&2
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
large_memory=$memory
if [[ -z $memory ]]; then
  available=$(available_gib)
  memory=${available}GiB large_memory=$memory
  [[ -z $seconds || $available -le 72 ]] || large_memory=72GiB
fi
mkdir -p "$output" "${disk:=$output/scratch}"
output=$(cd "$output" && pwd) disk=$(cd "$disk" && pwd)
export SPILLWAY_SOURCE=$share SPILLWAY_PROGRAM=$bin/spillway
# Profile and benchmarks share a cache, where plans find the profile, by the disk's name.
engine=("${loader[@]}" "SPILLWAY_CACHE=$output/cache" "$bin/spillway")
place=(--device "$device" --disk-dir "$disk")
summary=$output/summary.txt steps=$output/steps.tsv about=$output/about.tsv
rm -f "$steps" "$about" "$output"/results.* "$output/profile.json"
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
cp "$summary" "$output/facts.txt"


# step NAME KIND RESULT DETAIL: a row of the table; since the last `begin`. Any result but "passed"
# and "skipped" fails the check. What there is so far is written out, whatever comes.
begin() { begun=$SECONDS; }
step() {
  local name=$1 kind=$2 result=$3 detail=${4:-}
  detail=${detail//[$'\t\n']/ }
  [[ $result == passed || $result == skipped ]] || failed=1
  printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$kind" "$result" "$((SECONDS - begun))" "$detail" >> "$steps"
  write_results
  tail -n 1 "$output/table.txt"
}

write_results() {
  cp "$output/facts.txt" "$summary"
  echo >> "$summary"
  python3 "$reporter" table "$output" > "$output/table.txt" || failed=1
  cat "$output/table.txt" >> "$summary"
  if [[ $failed -eq 0 ]]; then echo "Everything passed."; else echo "Not everything passed."; fi >> "$summary"
  # Traces are large, and what they say is in the logs.
  # By name, and written outside: a folder that changes while tar reads it is an error to tar.
  local packed
  packed=$(mktemp)
  (cd "$output" && find . -maxdepth 1 -type f ! -name '*.trace.json' ! -name 'results.tar.gz' -print0 |
    tar --null --files-from=- -czf "$packed") || failed=1
  mv "$packed" "$output/results.tar.gz"
  chmod a+r "$output/results.tar.gz"
}

# within SECONDS: sets `limit`, the seconds that a step may take: as many as a fast GPU needs at most
# or as are left, and without --seconds many times that. False: so few that it would be in vain.
within() {
  limit=$1 own=$1
  [[ -n $seconds ]] || { limit=$((20 * own)) own=$((20 * own)); return 0; }
  local left=$((seconds - (SECONDS - began)))
  [[ $left -ge $limit ]] || limit=$left
  [[ $limit -ge 5 && $((4 * limit)) -ge $own ]]
}

# limited COMMAND...: its status; 124: there was no end within the limit.
limited() { timeout -k 5 "$limit" "$@"; }

# ended STATUS: whether it ended by the time that the run had left, which is nobody's failure.
out_of_time() { [[ $1 -eq 124 && $limit -lt $own ]]; }

# tests NAME SECONDS COMMAND...: a run that checked nothing has failed, too; the log's last lines say
# how much it did.
tests() {
  local name=$1 counted status=0
  begin
  within "$2" || { step "$name" tests skipped "no time"; return; }
  shift 2
  limited "$@" -w NoTests > "$output/$name.log" 2>&1 || status=$?
  counted=$(grep -Eo '[1-9][0-9]* assertions? in [0-9]+ test cases?' "$output/$name.log" | tail -n 1)
  if [[ $status -eq 0 && -n $counted ]]; then
    step "$name" tests passed "$counted"
  elif [[ $status -eq 0 ]]; then
    step "$name" tests FAILED "nothing was tested, see $output/$name.log"
  elif out_of_time "$status"; then
    step "$name" tests skipped "no time: no end within $limit s"
  elif [[ $status -eq 124 ]]; then
    step "$name" tests FAILED "no end within $limit s, see $output/$name.log"
  else
    step "$name" tests FAILED "exit status $status, see $output/$name.log"
  fi
  [[ $status -eq 0 || $status -eq 124 ]] || grep -A 14 -E 'FAILED|=========' "$output/$name.log" | head -n 40
}

# bench NAME SECONDS ARGUMENTS...: `spillway bench` on dummy weights.
bench() {
  local name=$1 status=0 line
  begin
  within "$2" || { step "$name" bench skipped "no time"; return 1; }
  shift 2
  limited "${engine[@]}" bench "$@" "${place[@]}" --dummy-weights --json > "$output/$name.json" 2> "$output/$name.log" || status=$?
  if out_of_time "$status"; then
    step "$name" bench skipped "no time: no end within $limit s"
  elif [[ $status -eq 124 ]]; then
    step "$name" bench FAILED "no end within $limit s"
  elif [[ $status -ne 0 ]]; then
    step "$name" bench FAILED "$(tail -n 1 "$output/$name.log")"
  elif line=$(python3 "$reporter" bench "$name" "$output/$name.json" 2>> "$output/$name.log"); then
    step "$name" bench passed
    echo "$line"
  else
    step "$name" bench FAILED "its report cannot be written: $(tail -n 1 "$output/$name.log")"
  fi
  return "$status"
}

# traced NAME SECONDS ARGUMENTS...: the same with a trace, and what each op took in it.
traced() {
  local name=$1 trace=$output/$1.trace.json
  shift
  bench "$name" "$@" --trace "$trace" || return
  begin
  if python3 "$reporter" ops "$trace" > "$output/$name.ops.txt" 2>&1; then
    step "$name-ops" trace passed
  else
    step "$name-ops" trace FAILED "$(tail -n 1 "$output/$name.ops.txt")"
  fi
  cat "$output/$name.ops.txt"
  rm -f "$trace"
}

small=(opt-125m --sequences 4 --prompt-tokens 16 --new-tokens 8 --host-memory "$memory")
rehearsed() { [[ $device == cpu ]]; }

part_smoke() { bench smoke 60 "${small[@]}"; }

# On the GPU alone: the CPU's devices take most of the time, and CI has them.
part_ops() {
  local only=(SPILLWAY_TEST_CUDA=only)
  ! rehearsed || only=()
  tests ops 240 "${loader[@]}" "${only[@]}" "$tests/kernels_test"
}

# Without it plans are a rule of thumb, and the CPU never attends.
part_profile() {
  local status=0
  begin
  within 150 || { step profile profile skipped "no time"; return; }
  limited "${engine[@]}" profile "${place[@]}" --seconds 40 --output "$output/profile.json" \
    > "$output/profile.txt" 2> "$output/profile.log" || status=$?
  if out_of_time "$status"; then
    step profile profile skipped "no time: no end within $limit s"
  elif [[ $status -ne 0 ]]; then
    step profile profile FAILED "$(tail -n 1 "$output/profile.log")"
  else
    cat "$output/profile.txt" >> "$output/facts.txt"
    cat "$output/profile.txt"
    step profile profile passed
  fi
}

part_resident() {
  if rehearsed; then bench opt-125m 60 "${small[@]}"; return; fi
  local f16=(--format f16 --host-memory "$memory")
  bench opt-1.3b-resident 60 opt-1.3b "${f16[@]}" --sequences 64 --prompt-tokens 128 --new-tokens 64
  bench opt-1.3b-resident-1 60 opt-1.3b "${f16[@]}" --sequences 1 --prompt-tokens 128 --new-tokens 128
  bench opt-6.7b-resident 120 opt-6.7b "${f16[@]}" --sequences 64 --prompt-tokens 512 --new-tokens 32
  bench llama-3.1-8b-resident 120 llama-3.1-8b --format bf16 --host-memory "$memory" --sequences 64 --prompt-tokens 512 --new-tokens 32
  bench opt-6.7b-resident-1 90 opt-6.7b "${f16[@]}" --sequences 1 --prompt-tokens 128 --new-tokens 64
  bench opt-6.7b-resident-q4 120 opt-6.7b --format q4 --host-memory "$memory" --sequences 64 --prompt-tokens 128 --new-tokens 32
}

part_trace() {
  if rehearsed; then traced opt-125m-traced 60 "${small[@]}"; return; fi
  local f16=(--format f16 --host-memory "$memory")
  traced opt-6.7b-resident-traced 120 opt-6.7b "${f16[@]}" --sequences 64 --prompt-tokens 512 --new-tokens 8
  traced opt-1.3b-resident-1-traced 60 opt-1.3b "${f16[@]}" --sequences 1 --prompt-tokens 128 --new-tokens 32
  local block=(--device-memory 6GiB --host-memory "$memory" --sequences 64 --prompt-tokens 128 --new-tokens 4)
  traced opt-6.7b-6GiB-traced 120 opt-6.7b --format f16 "${block[@]}"
  traced opt-6.7b-6GiB-q4-traced 120 opt-6.7b --format q4 "${block[@]}"
}

part_stream() {
  if rehearsed; then bench opt-125m-q4 60 "${small[@]}" --format q4; return; fi
  local block=(--device-memory 6GiB --host-memory "$memory" --sequences 64 --prompt-tokens 128 --new-tokens 16)
  bench opt-6.7b-6GiB 120 opt-6.7b --format f16 "${block[@]}"
  bench opt-6.7b-6GiB-q4 120 opt-6.7b --format q4 "${block[@]}"
}

part_resident-30b() {
  local name=opt-30b-resident
  [[ -z $quick ]] && ! rehearsed || return
  begin
  local mib
  mib=$("${smi[@]}" --query-gpu=memory.total --format=csv,noheader,nounits)
  if [[ ! $mib =~ ^[0-9]+$ || $mib -lt 73000 ]]; then
    step "$name" bench skipped "its 60 GB do not fit this GPU"
    return
  fi
  bench "$name" 180 opt-30b --format f16 --host-memory 8GiB --sequences 64 --prompt-tokens 512 --new-tokens 32
}

# The papers' machine: OPT-30B on 16 GB (FlexGen, arXiv 2303.06865, section 6; H2O, arXiv 2306.14048, section 5).
# The short runs are traced: an op takes so long there that the trace costs nothing.
opt_30b() {
  local rule=$1 tokens=$2 budget=$3 run=bench
  local keep=(--kv-rule "$rule") cut=()
  [[ $rule == full ]] || keep+=(--kv-heavy 0.1 --kv-recent 0.1)
  [[ $tokens -eq 32 || -n $full ]] || cut=(--decode-steps 24)
  [[ $tokens -ne 32 ]] || run=traced
  [[ -z $full ]] || budget=7200
  "$run" "opt-30b-16GB-512+$tokens-$rule" "$budget" opt-30b --format f16 --device-memory 16GB --host-memory "$large_memory" \
    --sequences 0 --prompt-tokens 512 --new-tokens "$tokens" "${keep[@]}" "${cut[@]}"
}
part_h2o-30b() {
  if rehearsed; then bench opt-125m-h2o 60 "${small[@]}" --kv-rule h2o --decode-steps 3; return; fi
  [[ -z $quick ]] || return
  opt_30b h2o 32 420
  opt_30b h2o 512 420
}
part_full-30b() {
  [[ -z $quick ]] && ! rehearsed || return
  local tokens
  opt_30b full 32 420
  opt_30b full 512 420
  for tokens in 32 512; do
    local name=opt-30b-16GB-512+$tokens line
    [[ -s $output/$name-full.json && -s $output/$name-h2o.json ]] || continue
    begin
    if line=$(python3 "$reporter" times "$name" "$output/$name-"{full,h2o}.json 2>&1); then
      step "$name" times passed "${line#*: }"
    else
      step "$name" times FAILED "${line##*$'\n'}"
    fi
  done
}

part_end-to-end() { tests end-to-end 300 "${loader[@]}" "$tests/endtoend_test" "[gpu]"; }

# The cases with the tag: small, and between them every kernel of ours, which are all that is looked
# at. `env` starts the program, so the tool follows it there.
sanitized() {
  local tool=$1 program sanitizer options
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
  begin
  if [[ -z $run_sanitizer ]]; then
    step "$tool" tests skipped "--no-sanitizer"
  elif [[ -z $sanitizer ]] && rehearsed; then
    step "$tool" tests skipped "a rehearsal does without"
  elif [[ -z $sanitizer ]]; then
    step "$tool" tests MISSING "compute-sanitizer is not on this machine, so nothing ran under it: install it, or say --no-sanitizer"
  else
    # A call's "not ready" is an answer of the runtime, which is asked after each piece of work,
    # and errors are tested for: what kernels do to memory is looked for, not what calls return.
    options=(--kernel-regex kns=spillway)
    [[ $tool == racecheck ]] || options+=(--report-api-errors no)
    for program in kernels_test endtoend_test; do
      tests "$tool-$program" 240 "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 1 \
        --target-processes all "${loader[@]}" "$tests/$program" "[sanitizer]"
    done
  fi
}
part_memcheck() { sanitized memcheck; }
part_racecheck() { sanitized racecheck; }

part_torch() {
  local peers=$here/scripts/bench_peers_gpu.py status=0
  if [[ -z $python ]]; then
    [[ $asked -eq 0 ]] || { begin; step torch peers MISSING "--python names no interpreter that has torch"; }
    return
  fi
  [[ -r $peers ]] || peers=$here/bench_peers_gpu.py
  begin
  within 600 || { step torch peers skipped "no time"; return; }
  limited python3 "$peers" --work "$disk/peers" --python "$python" --shape opt-6.7b --gpu-gib 60 \
    --host-memory-gib 32 --sequences 64 --prompt-tokens 512 --new-tokens 32 --output "$output/torch" \
    > "$output/torch.log" 2>&1 || status=$?
  if out_of_time "$status"; then
    step torch peers skipped "no time: no end within $limit s"
  elif [[ $status -ne 0 ]]; then
    step torch peers FAILED "$(tail -n 1 "$output/torch.log")"
  else
    step torch peers passed
    cat "$output/torch.md"
  fi
}

for part in "${parts[@]}"; do
  [[ -n $run_tests || " ops end-to-end memcheck racecheck " != *" $part "* ]] || continue
  "part_$part"
done
echo
cat "$summary"
exit $failed
