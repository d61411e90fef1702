#!/usr/bin/env bash
# What there is to measure on a GPU: the main question first, each step in a process of its own.
#
#   benchmarks/gpu.sh [first|second|third|fourth] FOLDER        results go to FOLDER as they come
#
# PYTHON (python3) needs the packages of `pip install diffclip`, and Triton. WHEELS may name a folder of unpacked wheels to put on the path.
# first:  errors, the verdict for `auto`, 40 steps of cc3m_vitb16 with CLIP and DiffCLIP on made shards, then times.
# second: all models, batches 256 and 1024, inference, compiled ahead in processes with one inductor cache.
# third:  again what a change of the kernels changes, with cost against length.
# fourth: attention in bfloat16 and float32, ncu.
# Each takes less than ten minutes. DEVICE=cpu rehearses the first two with small models, batches and short rows.
set -u
part=first
case "${1:-}" in first | second | third | fourth) part=$1 && shift ;; esac
out=${1:-benchmarks/results}
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
cd "$(dirname "$0")/.." && mkdir -p "$out" || exit 2
export PYTHONUNBUFFERED=1 PYTHONPATH="src${WHEELS:+:$WHEELS}${PYTHONPATH:+:$PYTHONPATH}"
# not with the results: a second and a third call find it too
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-${TMPDIR:-/tmp}/diffclip-inductor}"

echo "== 0 imports"
timeout 60 "$python" -c "import benchmarks.training, benchmarks.parity, benchmarks.attention" || exit 2

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

diffclip() { # limit, options
  local limit=$1
  shift
  step "$limit" "$python" -m diffclip.cli "$@"
}
steps() { # limit, recipe, size of the images, batch, changes: 40 steps of CLIP and of DiffCLIP, and their ratio
  local limit=$1 recipe=$2 size=$3 batch=$4 kind
  shift 4
  rm -rf "$out"/steps_*
  diffclip 90 data make-scenes "$out/made" --size "$size" --train $((40 * batch)) --val 8
  for kind in CLIP DiffCLIP; do
    diffclip "$limit" train "$recipe" "model=$kind${model_size:-}" "data.train=$out/made/captions/train" data.val=null \
      data.expected_samples=null "batch_size=$batch" epochs=1 warmup_epochs=0 lr_start=1e-5 lr_end=0 "$@" \
      --accelerator "$device" --devices 1 --run "$out/steps_$kind"
  done
  "$python" - "$out" <<'END'
import json, statistics, sys
rates = []
for kind in ("CLIP", "DiffCLIP"):
    with open(f"{sys.argv[1]}/steps_{kind}/metrics.jsonl") as file:
        rows = [json.loads(line) for line in file]
    rates.append(statistics.median(row["samples_per_second"] for row in rows if row["step"] > 20))
print(f"== CLIP {rates[0]:.0f} and DiffCLIP {rates[1]:.0f} samples a second in training: ratio {rates[1] / rates[0]:.2f}")
print("== for comparison, timm's differential to plain ViT: 0.80 to 0.85, inference, compiled, bf16")
END
}

workers=${WORKERS:-12}
if [ "$device" = cpu ]; then
  if [ "$part" = first ]; then
    bench 80 parity --longest 77 --seconds 30
    diffclip 90 bench --device cpu --seconds 5
    steps 120 scenes_demo 32 16
    bench 100 training --models CLIP "DiffCLIP auto" --batch 8 --seconds 20 --rounds 3
  else
    bench 120 training --batch 8 --seconds 60 --rounds 3
  fi
  [ ! -s "$out/failed.txt" ]
  exit
fi
if [ "$part" = first ]; then
  bench 80 parity --workers "$workers" --seconds 60
  diffclip 70 bench --device cuda --seconds 30
  model_size=-ViT-B-16
  steps 90 cc3m_vitb16 224 1024 "data.workers=$workers"
  bench 110 training --models CLIP "DiffCLIP auto" --batch 256 --compile blocks --seconds 100
elif [ "$part" = second ]; then
  # every model is compiled in a process of its own; the run after it finds them in the shared cache
  for model in CLIP OpenCLIP "DiffCLIP auto" "DiffCLIP eager" "DiffCLIP timm"; do
    timeout 200 "$python" -m benchmarks.training --device cuda --output "$out/ahead" --models "$model" \
      --batch 256 --compile blocks --rounds 1 --seconds 150 >"$out/ahead_${model// /_}.log" 2>&1 &
  done
  wait
  bench 380 training --batch 256 1024 --compile blocks --seconds 360
elif [ "$part" = third ]; then
  bench 90 parity --workers "$workers" --seconds 70
  bench 200 attention --curve --workers "$workers" --seconds 180
  bench 200 training --models CLIP "DiffCLIP auto" --batch 256 1024 --compile blocks --seconds 190
else
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
fi
[ ! -s "$out/failed.txt" ]
