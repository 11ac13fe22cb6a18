// The kernel table of an instruction set. isa_*.cc include it last, after the decoder's, and define HEED_SUPPORTED.
#pragma once

#include "additive_backward.h"
#include "additive_forward.h"
#include "backward.h"
#include "bias_gradient.h"
#include "cross_entropy.h"
#include "decode.h"
#include "dropout.h"
#include "few_rows.h"
#include "forward.h"
#include "normalization.h"
#include "registry.h"

namespace heed {
namespace HEED_ISA {

template <class Stored>
constexpr Kernels kernels_of() {
  typedef typename Compute<Stored>::Type Real;
  typedef VectorProducts<Stored> Products;
  typedef VectorGradients<Stored> Gradients;
  Kernels k = {};
  k.problem_of_scoring = problem_of_scoring<Real>;
  k.rule_needs = rule_needs;
  k.operation_needs = operation_needs;
  k.forward_bytes = scratch_bytes<ForwardScratch<Products>, HeedAttention>;
  k.backward_bytes = scratch_bytes<BackwardScratch<Gradients>, HeedAttention>;
  k.gradient_row = gradient_row<Real>;
  k.scan_finite = scan_finite<Stored>;
  k.packed_bytes = [](const HeedAttention&) -> size_t { return 0; };
  k.forward = forward<Stored, Products>;
  k.decode_bytes = scratch_bytes<DecodeScratch<Real>, HeedAttention>;
  k.split_bytes = scratch_bytes<Split<Real>, HeedAttention>;
  k.decode = decode<Stored>;
  k.combine_splits = combine_splits<Stored>;
  k.backward = backward<Stored, Gradients>;
  k.bias_gradient = bias_gradient<Stored, Gradients>;
  k.capture_gradients = capture_gradients<Stored, Gradients>;
  k.scatter_range = scatter_range;
  k.scatters_apart = scatters_apart;
  k.write_rows = write_rows<Stored>;
  k.sum_parts = sum_parts<Real>;
  k.compute_bytes = sizeof(Real);
  k.additive = {scratch_bytes<AdditiveState<Real>, HeedAttention>,
                scratch_bytes<AdditiveTile<Stored>, HeedAttention>,
                scratch_bytes<AdditiveBackwardScratch<Stored>, HeedAttention>,
                units_stride<Real>,
                additive_forward<Stored>,
                additive_combine<Stored>,
                additive_backward<Stored>};
  return k;
}

static const Kernels kKernels[4] = {kernels_of<float>(), kernels_of<double>(), kernels_of<Bfloat16>(),
                                    kernels_of<Float16>()};  // in the order of HeedDtype

template <class Stored>
constexpr RowKernels row_kernels_of() {
  RowKernels k = {};
  k.cross_entropy = cross_entropy<Stored>;
  k.cross_entropy_gradient = cross_entropy_gradient<Stored>;
  k.normalization = normalization<Stored>;
  k.normalization_gradient = normalization_gradient<Stored>;
  k.sum_parts = sum_parts<typename Compute<Stored>::Type>;
  k.dropout = dropout<Stored>;
  k.few_rows_bytes = scratch_bytes<FewRowsScratch<Stored>, HeedProduct>;
  k.few_rows = few_rows<Stored>;
  return k;
}

static const RowKernels kRowKernels[4] = {row_kernels_of<float>(), row_kernels_of<double>(), row_kernels_of<Bfloat16>(),
                                          row_kernels_of<Float16>()};

#define HEED_STRING(text) #text
#define HEED_NAME_OF(isa) HEED_STRING(isa)

const InstructionSet kInstructionSet = {
    HEED_NAME_OF(HEED_ISA),
    []() -> bool { return HEED_SUPPORTED; },
    [](const HeedAttention& a) -> const Kernels& { return kKernels[a.dtype]; },
    [](const HeedRows& rows) -> const RowKernels& { return kRowKernels[rows.dtype]; },
    []() -> const DecoderKernels& { return kDecoderKernels; },
    kBlockSizes};

}  // namespace HEED_ISA
}  // namespace heed
