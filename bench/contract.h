/* The common part of the C clients that bench/compare measures.
 *
 * A worker reads lines of JSON, flat and without escapes, and replies to each with one line:
 *   a specification, which has "system"  -> {"ready":true,"about":"..."} when it is set up
 *   a round, which has "seconds"         -> its measurements
 * A reply with "error" is the last one. bench/peers/src/contract.rs is the same in Rust.
 */
#ifndef CONTRACT_H
#define CONTRACT_H

#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE_MAX_BYTES 65536
#define LATENCIES_MAX 4000000u

static inline uint64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void fail(const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++)
        if (*c == '"' || *c == '\\' || *c < ' ') *c = ' ';
    printf("{\"error\":\"%s\"}\n", text);
    fflush(stdout);
    exit(1);
}

/* The beginning of a field's value; NULL if the line does not have the field. */
static inline const char *field(const char *line, const char *name) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(line, quoted);
    return at ? at + strlen(quoted) : NULL;
}

static inline double number(const char *line, const char *name, double otherwise) {
    const char *at = field(line, name);
    return at ? strtod(at, NULL) : otherwise;
}

static inline void text(const char *line, const char *name, char *out, size_t room) {
    const char *at = field(line, name);
    out[0] = 0;
    if (!at || *at != '"') return;
    const char *end = strchr(++at, '"');
    if (!end || (size_t)(end - at) >= room) fail("%s is too long", name);
    memcpy(out, at, (size_t)(end - at));
    out[end - at] = 0;
}

/* Latencies of one round, in nanoseconds. */
struct round {
    uint64_t until, most, count, units, began, cpu;
    int piped; /* each unit is an operation */
    uint32_t *latencies;
};

static inline void begin_round(struct round *r, const char *line) {
    static uint32_t *latencies;
    if (!latencies) latencies = malloc(LATENCIES_MAX * sizeof *latencies);
    if (!latencies) fail("no memory");
    double ops = number(line, "ops", 1e18);
    *r = (struct round){.latencies = latencies, .most = ops > 1e18 ? (uint64_t)1e18 : (uint64_t)ops};
    r->cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    r->began = now_ns(CLOCK_MONOTONIC);
    r->until = r->began + (uint64_t)(number(line, "seconds", 0.1) * 1e9);
}

/* Records one operation of `units` units (keys of a batch) that ran from `before` to `now`. Returns false
 * after the last operation. */
static inline int counted(struct round *r, uint64_t before, uint64_t now, uint64_t units) {
    uint64_t took = now - before;
    r->latencies[r->count++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    r->units += units;
    return now < r->until && r->count < r->most && r->count < LATENCIES_MAX;
}

static inline int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static inline void end_round(struct round *r) {
    uint64_t wall = now_ns(CLOCK_MONOTONIC) - r->began;
    uint64_t cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID) - r->cpu;
    qsort(r->latencies, r->count, sizeof *r->latencies, by_size);
    const double quantiles[5] = {0.5, 0.9, 0.99, 0.999, 1.0};
    double at[5];
    for (int i = 0; i < 5; i++) {
        uint64_t n = (uint64_t)(quantiles[i] * (double)r->count);
        at[i] = r->latencies[n < r->count ? n : r->count - 1] / 1000.0;
    }
    printf("{\"ops\":%llu,\"units\":%llu,\"wall_ns\":%llu,\"cpu_ns\":%llu,"
           "\"latency_us\":[%.3f,%.3f,%.3f,%.3f,%.3f]}\n",
           (unsigned long long)(r->piped ? r->units : r->count), (unsigned long long)r->units,
           (unsigned long long)wall,
           (unsigned long long)cpu, at[0], at[1], at[2], at[3], at[4]);
    fflush(stdout);
}

static inline void ready(const char *about) {
    printf("{\"ready\":true,\"about\":\"%s\"}\n", about);
    fflush(stdout);
}

/* A cheap random number generator: the order of keys does not matter, only the cost. */
static inline uint32_t draw(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((*state >> 33) * (uint64_t)below) >> 31);
}

static inline void key_of(char out[17], uint64_t size, uint32_t n) {
    snprintf(out, 17, "%07llx:%08u", (unsigned long long)size & 0xfffffff, n % 100000000u);
}

static inline void fill_noise(unsigned char *bytes, size_t length) {
    uint64_t state = 7;
    for (size_t i = 0; i < length; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (unsigned char)(state >> 56);
    }
}

#endif
