// Products of bfloat16 numbers on a CPU without instructions for them: multiplied and summed in float32, rounded to
// bfloat16. Rows go in blocks that stay in the cache. `sitecustomize.py` beside this file says how it is used.
#include <ATen/CPUFunctions.h>
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

namespace {

using at::Tensor;
constexpr int64_t kRows = 512;  // a block

bool is_bf16(const Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }
Tensor up(const Tensor& tensor) { return tensor.to(at::kFloat); }
Tensor down(const Tensor& tensor) { return tensor.defined() ? tensor.to(at::kBFloat16) : tensor; }

Tensor product(const Tensor& a, const Tensor& b, const Tensor* bias) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const auto wide = a.options().dtype(at::kFloat);
  if (m >= k) {  // blocks of rows of a and of the product
    const Tensor b_up = up(b), bias_up = bias ? up(*bias) : Tensor();
    Tensor out = at::cpu::empty({m, n}, a.options());
    const int64_t rows = std::min(kRows, m);
    const Tensor a_block = at::cpu::empty({rows, k}, wide), block = at::cpu::empty({rows, n}, wide);
    for (int64_t i = 0; i < m; i += rows) {
      const int64_t r = std::min(rows, m - i);
      Tensor x = a_block.narrow(0, 0, r), y = block.narrow(0, 0, r);
      x.copy_(a.narrow(0, i, r));
      if (bias) {
        at::cpu::addmm_out(y, bias_up, x, b_up);
      } else {
        at::cpu::mm_out(y, x, b_up);
      }
      out.narrow(0, i, r).copy_(y);
    }
    return out;
  }
  Tensor sum = at::cpu::empty({m, n}, wide);  // blocks of the dimension that is summed
  const int64_t rows = std::min(kRows, k);
  const Tensor a_block = at::cpu::empty({rows, m}, wide), b_block = at::cpu::empty({rows, n}, wide);
  for (int64_t i = 0; i < k; i += rows) {
    const int64_t r = std::min(rows, k - i);
    Tensor x = a_block.narrow(0, 0, r), y = b_block.narrow(0, 0, r);
    x.copy_(a.t().narrow(0, i, r));
    y.copy_(b.narrow(0, i, r));
    if (i) {
      at::cpu::addmm_out(sum, sum, x.t(), y);
    } else {
      at::cpu::mm_out(sum, x.t(), y);
    }
  }
  return down(bias ? sum.add(up(*bias)) : sum);
}

Tensor mm(const Tensor& a, const Tensor& b) { return is_bf16(a) ? product(a, b, nullptr) : at::cpu::mm(a, b); }

Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  const bool plain = is_bf16(a) && beta.toDouble() == 1 && alpha.toDouble() == 1;
  return plain ? product(a, b, &bias) : at::cpu::addmm(bias, a, b, beta, alpha);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  return is_bf16(a) ? down(at::cpu::bmm(up(a), up(b))) : at::cpu::bmm(a, b);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  using at::compositeexplicitautograd::convolution;
  if (!is_bf16(input))
    return convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  const auto bias_up = bias.has_value() && bias->defined() ? std::optional<Tensor>(up(*bias)) : std::nullopt;
  return down(
      convolution(up(input), up(weight), bias_up, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                                        at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride,
                                                        at::IntArrayRef padding, at::IntArrayRef dilation,
                                                        bool transposed, at::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> mask) {
  using at::compositeexplicitautograd::convolution_backward;
  if (!is_bf16(input))
    return convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
                                groups, mask);
  auto [of_input, of_weight, of_bias] =
      convolution_backward(up(grad), up(input), up(weight), bias_sizes, stride, padding, dilation, transposed,
                           output_padding, groups, mask);
  return {down(of_input), down(of_weight), down(of_bias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("mm", mm);
  library.impl("addmm", addmm);
  library.impl("bmm", bmm);
  library.impl("convolution", convolution);
  library.impl("convolution_backward", convolution_backward);
}
