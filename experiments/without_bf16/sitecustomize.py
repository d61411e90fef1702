"""Products of bfloat16 numbers on a CPU without instructions for them, at the speed of float32.

Without the instructions torch needs ten times as long. `products.cpp` multiplies and sums in float32 and rounds the sum
to bfloat16, as the instructions do; only the order of the sums differs. Python imports this file in each process:

    LIB=$(python -c "import torch; print(torch.__path__[0])")
    g++ -O2 -std=c++20 -fPIC -shared -I$LIB/include -I$LIB/include/torch/csrc/api/include -L$LIB/lib \
        -Wl,-rpath,$LIB/lib experiments/without_bf16/products.cpp -lc10 -ltorch_cpu -o products.so
    export MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000  # memory is kept: a tenth faster
    PRODUCTS=$PWD/products.so PYTHONPATH=experiments/without_bf16 diffclip study ...
"""

import os

import torch

torch.ops.load_library(os.environ["PRODUCTS"])
torch.utils.deterministic.fill_uninitialized_memory = False  # it is written before it is read
