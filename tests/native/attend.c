// heed.h from C: reads query, key, value, bias and the gradient of the output from standard input, as float32, and
// writes output, log-sum-exp and all gradients to standard output. Causal attention of 4 heads over 2 key/value heads,
// whose batch entries have keys of their own lengths; then additive attention on the same numbers.
#include <heed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, T = 5, S = 7, N = 4, K = 2, H = 8, V = 6 };

static float query[B][T][N][H], key[B][S][K][H], value[B][S][K][V], bias[N][T][S], output_gradient[B][T][N][V];
static float output[B][T][N][V], lse[B][N][T];
static float query_gradient[B][T][N][H], key_gradient[B][S][K][H], value_gradient[B][S][K][V], bias_gradient[N][T][S];

#define READ(array) (fread(array, sizeof(array), 1, stdin) == 1)
#define WRITE(array) (fwrite(array, sizeof(array), 1, stdout) == 1)
// (B, length, heads, features) without gaps
#define TENSOR(array) \
  (HeedTensor){(array), sizeof((array)[0]) / 4, sizeof((array)[0][0]) / 4, sizeof((array)[0][0][0]) / 4}

static int failed(const char* problem) {
  if (problem) fprintf(stderr, "%s\n", problem);
  return problem != NULL;
}

int main(void) {
  if (heed_version() != HEED_VERSION) return failed("heed.h and the library are of two versions");
  if (!(READ(query) && READ(key) && READ(value) && READ(bias) && READ(output_gradient))) return failed("no input");

  const int32_t lengths[B] = {S, 4}, align[1] = {1};
  const HeedMaskRule rules[2] = {
      {.kind = HEED_LENGTHS, .first = {lengths, B, 1}},
      {.kind = HEED_WINDOW, .left = HEED_NO_LIMIT, .right = 0, .align = {align, 1, 1}},
  };
  HeedAttention attention = {
      .batch = B,
      .heads = N,
      .kv_heads = K,
      .query_length = T,
      .key_length = S,
      .head_dim = H,
      .value_dim = V,
      .query = TENSOR(query),
      .key = TENSOR(key),
      .value = TENSOR(value),
      .scoring = {.scale = 0.25},
      .bias = {bias, {1, N, T, S}, {0, T * S, S, 1}},
      .rule_count = 2,
      .rules = rules,
  };
  float* softmax = malloc((size_t)heed_softmax_size(&attention) * sizeof(float));
  if (!softmax) return failed("no memory");
  HeedForward results = {TENSOR(output), lse, softmax};
  const HeedBackward pass = {
      .output = TENSOR(output),
      .softmax = softmax,
      .output_gradient = TENSOR(output_gradient),
      .query_gradient = TENSOR(query_gradient),
      .key_gradient = TENSOR(key_gradient),
      .value_gradient = TENSOR(value_gradient),
      .bias_gradient = bias_gradient,
  };
  if (failed(heed_forward(&attention, &results, heed_available_threads()))) return 1;
  if (failed(heed_backward(&attention, &pass, 1)) || failed(heed_bias_gradient(&attention, &pass, 1))) return 1;
  if (!(WRITE(output) && WRITE(lse) && WRITE(query_gradient) && WRITE(key_gradient) && WRITE(value_gradient) &&
        WRITE(bias_gradient)))
    return failed("no output");

  // Additive attention: one head, units in place of features.
  attention.score = HEED_ADDITIVE;
  attention.heads = attention.kv_heads = 1;
  attention.scoring.scale = 1;
  attention.bias.data = NULL;
  const char* problem = heed_check(&attention);
  if (!problem || strcmp(problem, "the score vector is missing") != 0) return failed("what is missing is not said");
  attention.score_vector = query;
  // It may keep its scores, for a backward pass.
  results.softmax = realloc(softmax, (size_t)heed_softmax_size(&attention) * sizeof(float));
  if (!results.softmax) return failed("no memory");
  if (failed(heed_forward(&attention, &results, 1)) || !WRITE(output)) return 1;
  free(results.softmax);

  for (int i = 0; heed_instruction_set_name(i); ++i)
    if (strcmp(heed_instruction_set_name(i), heed_instruction_set()) == 0) return 0;
  return failed("the instruction set in use is none of those there are");
}
