// Decodes so many tokens with a small language model, through heed_decoder.h alone, and tells what that allocated:
//   decode LENGTH BEAMS  ->  "BYTES CALLS"
// The functions of the C library that allocate are replaced by ones that count.
#include <heed_decoder.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void* __libc_malloc(size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void* __libc_realloc(void* old, size_t size);

static size_t bytes = 0, calls = 0;

static void count(size_t size) { bytes += size, ++calls; }

void* malloc(size_t size) { return count(size), __libc_malloc(size); }
void* realloc(void* old, size_t size) { return count(size), __libc_realloc(old, size); }
void* aligned_alloc(size_t alignment, size_t size) { return count(size), __libc_memalign(alignment, size); }
void* memalign(size_t alignment, size_t size) { return count(size), __libc_memalign(alignment, size); }
void* calloc(size_t members, size_t size) {
  void* made = malloc(members * size);
  return made ? memset(made, 0, members * size) : made;
}
int posix_memalign(void** made, size_t alignment, size_t size) {
  *made = memalign(alignment, size);
  return *made ? 0 : 12;  // ENOMEM
}

enum { kWidth = 64, kHeads = 4, kHidden = 128, kVocabulary = 50, kLayers = 2, kBatch = 3 };

// Numbers in [-1, 1] / 4, always the same.
static float* numbers(int64_t length) {
  static unsigned state = 1;
  float* made = malloc((size_t)length * sizeof(float));
  for (int64_t i = 0; i < length; ++i) {
    state = state * 1664525u + 1013904223u;
    made[i] = ((float)(state >> 8) / 8388608.0f - 1.0f) / 4;
  }
  return made;
}

static HeedDense dense(int64_t inputs, int64_t outputs) {
  return (HeedDense){.weight = numbers(inputs * outputs), .inputs = inputs, .outputs = outputs};
}

static HeedNorm norm(void) { return (HeedNorm){.gamma = numbers(kWidth), .epsilon = 1e-6, .root_mean_square = 1}; }

static int complain(const char* message) {
  fprintf(stderr, "%s\n", message);
  return 1;
}

int main(int argument_count, char** arguments) {
  if (argument_count != 3) return complain("decode LENGTH BEAMS");
  HeedDecoderLayer layers[kLayers];
  for (int i = 0; i < kLayers; ++i)
    layers[i] = (HeedDecoderLayer){
        .self_norm = norm(),
        .feed_forward_norm = norm(),
        .self = {.query = dense(kWidth, kWidth),
                 .key = dense(kWidth, kWidth),
                 .value = dense(kWidth, kWidth),
                 .output = dense(kWidth, kWidth)},
        .hidden = dense(kWidth, kHidden),
        .back = dense(kHidden, kWidth),
        .activation = HEED_SILU,
        .norm_first = 1,
    };
  const HeedDecoderStack stack = {
      .width = kWidth,
      .heads = kHeads,
      .kv_heads = kHeads,
      .head_dim = kWidth / kHeads,
      .value_dim = kWidth / kHeads,
      .vocabulary = kVocabulary,
      .embedding = numbers(kVocabulary * kWidth),
      .embedding_scale = 1,
      .layer_count = kLayers,
      .layers = layers,
      .final_norm = norm(),
      .logits = dense(kWidth, kVocabulary),
  };
  HeedDecoder* decoder = NULL;
  const char* error = heed_decoder_make(&stack, &decoder);
  if (error) return complain(error);

  const int beams = atoi(arguments[2]);
  const HeedDecoding decoding = {
      .batch = kBatch,
      .length = atoi(arguments[1]),
      .pad_token = 0,
      // The start is never decoded: with it as their end all rows go on to the last token.
      .start_token = 1,
      .end_token = 1,
      .search = beams > 1 ? HEED_BEAM : HEED_GREEDY,
      .beams = beams,
  };
  int32_t* tokens = malloc((size_t)(kBatch * decoding.length) * sizeof(int32_t));
  bytes = calls = 0;
  error = heed_decode(decoder, &decoding, tokens, NULL, 1);
  const size_t used = bytes, times = calls;
  if (error) return complain(error);
  for (int64_t i = 0; i < kBatch * decoding.length; ++i)
    if (tokens[i] < 2 || tokens[i] >= kVocabulary) return complain("a row ended, or has a token that is none");
  printf("%zu %zu\n", used, times);
  heed_decoder_free(decoder);
  return 0;
}
