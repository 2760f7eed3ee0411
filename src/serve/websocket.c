/* websocket: see websocket.h. */
#include "serve/websocket.h"

#include <errno.h>
#include <string.h>

/* --- the handshake: base64 of SHA-1 of the key and a text of the standard's --- */

static uint32_t rotate(uint32_t x, unsigned n)
{
    return x << n | x >> (32 - n);
}

static void add_block(uint32_t h[5], const unsigned char block[64])
{
    static const uint32_t constants[] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];

    for (size_t i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (size_t i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (size_t i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? (b & c) | (~b & d)
                     : i < 40 ? b ^ c ^ d
                     : i < 60 ? (b & c) | (b & d) | (c & d)
                              : b ^ c ^ d;
        uint32_t next = rotate(a, 5) + f + e + constants[i / 20] + w[i];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
}

static void put_base64(const unsigned char *bytes, size_t n, char *ret)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = (uint32_t)bytes[i] << 16 | (i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (i + 2 < n ? bytes[i + 2] : 0);
        *ret++ = digits[bits >> 18];
        *ret++ = digits[bits >> 12 & 63];
        *ret++ = i + 1 < n ? digits[bits >> 6 & 63] : '=';
        *ret++ = i + 2 < n ? digits[bits & 63] : '=';
    }
    *ret = '\0';
}

bool pb_websocket_accept(const char *key, char ret[PB_WEBSOCKET_ACCEPT])
{
    static const char standard[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    enum { KEY = 24, TEXT = KEY + sizeof(standard) - 1 };
    uint32_t h[] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    unsigned char blocks[128] = {0}, digest[20];

    if (strlen(key) != KEY)
        return false;
    memcpy(blocks, key, KEY);
    memcpy(blocks + KEY, standard, sizeof(standard) - 1);
    blocks[TEXT] = 0x80;
    blocks[126] = TEXT * 8 >> 8; /* the length in bits ends the last block */
    blocks[127] = TEXT * 8 & 0xff;
    add_block(h, blocks);
    add_block(h, blocks + 64);
    for (size_t i = 0; i < 20; i++)
        digest[i] = (unsigned char)(h[i / 4] >> (24 - 8 * (i % 4)));
    put_base64(digest, sizeof(digest), ret);
    return true;
}

/* --- frames --- */

static bool is_kind(unsigned kind)
{
    return kind <= PB_WEBSOCKET_BINARY || (kind >= PB_WEBSOCKET_CLOSE && kind <= PB_WEBSOCKET_PONG);
}

int pb_websocket_parse(const unsigned char *bytes, size_t n, struct pb_websocket_frame *ret)
{
    if (n < 2)
        return 0;
    unsigned kind = bytes[0] & 15, length = bytes[1] & 127;
    bool control = kind >= PB_WEBSOCKET_CLOSE;
    size_t wide = length == 126 ? 2 : length == 127 ? 8 : 0, head = 2 + wide + 4;
    /* No extension was agreed on, and a client's frames are masked. Control frames are short and whole. */
    if (bytes[0] & 0x70 || !(bytes[1] & 0x80) || !is_kind(kind) || (control && (wide || !(bytes[0] & 0x80))))
        return -EPROTO;
    if (n < head)
        return 0;
    uint64_t wanted = wide ? 0 : length;
    for (size_t i = 0; i < wide; i++)
        wanted = wanted << 8 | bytes[2 + i];
    if (wanted >> 63)
        return -EPROTO;
    *ret = (struct pb_websocket_frame){
        .kind = (enum pb_websocket_kind)kind, .last = bytes[0] & 0x80, .head = head, .length = wanted};
    memcpy(ret->mask, bytes + head - 4, 4);
    return 1;
}

void pb_websocket_unmask(const struct pb_websocket_frame *f, char *content, size_t n)
{
    for (size_t i = 0; i < n; i++)
        content[i] = (char)(content[i] ^ f->mask[i % 4]);
}

size_t pb_websocket_head(enum pb_websocket_kind kind, size_t length, unsigned char ret[10])
{
    size_t wide = length > 0xffff ? 8 : length > 125 ? 2 : 0;

    ret[0] = (unsigned char)(0x80 | kind);
    ret[1] = (unsigned char)(wide == 8 ? 127 : wide == 2 ? 126 : length);
    for (size_t i = 0; i < wide; i++)
        ret[2 + i] = (unsigned char)((uint64_t)length >> 8 * (wide - 1 - i));
    return 2 + wide;
}
