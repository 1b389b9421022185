/* Dropout as a function of the index of an element, see dropout.py. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t hash(uint32_t x, uint32_t first, uint32_t second) {
    x ^= first;
    x ^= x >> 16; x *= 0x7feb352dU; x ^= second;
    x ^= x >> 15; x *= 0x846ca68bU;
    return x ^ (x >> 16);
}

static inline uint32_t scaled(uint32_t bits, float scale) {
    float value;
    memcpy(&value, &bits, 4);
    value *= scale;
    memcpy(&bits, &value, 4);
    return bits;
}

#define DROP(name, type, shift, narrowed) \
void name(const type *in, type *out, size_t count, uint32_t offset, \
          uint32_t first, uint32_t second, uint32_t threshold, float scale) { \
    for (size_t i = 0; i < count; i++) { \
        uint32_t bits = scaled((uint32_t)in[i] << shift, scale); \
        out[i] = hash((uint32_t)i + offset, first, second) < threshold ? 0 : (type)(narrowed); \
    } \
}

DROP(drop_float32, uint32_t, 0, bits)
DROP(drop_bfloat16, uint16_t, 16, (bits + 0x7fffU + ((bits >> 16) & 1)) >> 16)
