#!/usr/bin/env bash
# What there is to measure on a GPU: the main question first, each step in a process of its own.
#
#   benchmarks/gpu.sh [first|second|third] FOLDER        results go to FOLDER as they come
#
# PYTHON (python3) needs the packages of `pip install diffclip`, and Triton. WHEELS may name a folder of unpacked wheels to put on the path.
# first:  CLIP against DiffCLIP compiled, errors, block sizes, attention in bfloat16 and float32, ncu.
# second: all models, batches 256 and 1024, inference, compiled ahead in processes with one inductor cache.
# third:  again what a change of the kernels or their block sizes changes, with cost against length.
# DEVICE=cpu rehearses them with small batches and short rows.
set -u
part=first
case "${1:-}" in first | second | third) part=$1 && shift ;; esac
out=${1:-benchmarks/results}
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
cd "$(dirname "$0")/.." && mkdir -p "$out" || exit 2
export PYTHONUNBUFFERED=1 PYTHONPATH="src${WHEELS:+:$WHEELS}${PYTHONPATH:+:$PYTHONPATH}"
# not with the results: a second and a third call find it too
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-${TMPDIR:-/tmp}/diffclip-inductor}"

echo "== 0 imports"
timeout 60 "$python" -c "import benchmarks.training, benchmarks.parity, benchmarks.tuning, benchmarks.attention" || exit 2

rm -f "$out/failed.txt"
began=$(date +%s)
step() { # limit in seconds, program, options
  local limit=$1 started
  shift
  started=$(date +%s)
  echo "== $*"
  timeout -k 5 "$limit" "$@" || echo "== FAILED ($?, 124 for out of time): $*" | tee -a "$out/failed.txt"
  echo "== $(($(date +%s) - started)) s of $limit s, $(($(date +%s) - began)) s in all"
}
bench() { # limit, name, options
  local limit=$1 name=$2
  shift 2
  step "$limit" "$python" -m "benchmarks.$name" --device "$device" --output "$out" "$@"
}

workers=${WORKERS:-12}
if [ "$device" = cpu ]; then
  if [ "$part" = first ]; then
    bench 100 training --models CLIP "DiffCLIP auto" --batch 8 --seconds 20 --rounds 3
    bench 80 parity --longest 77 --seconds 30
    bench 90 tuning
    bench 90 attention --largest 200 --seconds 20
  else
    bench 120 training --batch 8 --seconds 60 --rounds 3
  fi
  [ ! -s "$out/failed.txt" ]
  exit
fi
if [ "$part" = first ]; then
  bench 110 training --models CLIP "DiffCLIP auto" --batch 256 --compile blocks --seconds 100
  bench 90 parity --workers "$workers" --seconds 70
  bench 100 tuning --workers "$workers" --seconds 80 --tokens 197 77 4097
  bench 100 attention --workers "$workers" --seconds 80
  bench 50 attention --dtype float32 --largest 200 --workers "$workers" --seconds 35
  ncu=$(command -v ncu || ls /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | tail -1)
  if [ -n "$ncu" ]; then
    step 60 "$ncu" --set full --force-overwrite --export "$out/kernels_197" \
      --kernel-name "regex:forward_short|backward_rows|backward_keys" --launch-skip 1 --launch-count 3 \
      "$python" -m benchmarks.parity --device cuda --output "$out/ncu" --seconds 40 --only "N197 d64 e128"
  else
    echo "== ncu is not there: no counters"
  fi
elif [ "$part" = second ]; then
  # every model is compiled in a process of its own; the run after it finds them in the shared cache
  for model in CLIP OpenCLIP "DiffCLIP auto" "DiffCLIP eager" "DiffCLIP timm"; do
    timeout 200 "$python" -m benchmarks.training --device cuda --output "$out/ahead" --models "$model" \
      --batch 256 --compile blocks --rounds 1 --seconds 150 >"$out/ahead_${model// /_}.log" 2>&1 &
  done
  wait
  bench 380 training --batch 256 1024 --compile blocks --seconds 360
else
  bench 90 parity --workers "$workers" --seconds 70
  bench 200 attention --curve --workers "$workers" --seconds 180
  bench 200 training --models CLIP "DiffCLIP auto" --batch 256 1024 --compile blocks --seconds 190
fi
[ ! -s "$out/failed.txt" ]
