/* Changes of a RocksDB that is larger than its memory, for `honeycomb bench spill --writes --beside rocksdb`.
 *
 * It reads one line of JSON (contract.h) with "path", "memory", "entries", "value", "batch" and "points", fills
 * the database in such batches, and replies "ready" with "filling": about so many pairs of the stored bytes and
 * the entries per second at that point. A further line is a round of "seconds" with "clients", "batch", "skew"
 * (of a Zipf distribution of the keys; 0 for uniform keys) and "reader" (1: a thread reads single entries
 * meanwhile). "clients" may be 0. The reply has the puts, the seconds, and the p99 of the reads. A line with
 * "settle" is answered when no flush and no compaction runs or is due, or is an error after so many seconds.
 *
 * The database has no log, no compression and direct I/O. Its block cache has half of the memory, and its
 * write buffers have the other half.
 */
#include "contract.h"
#include <math.h>
#include <pthread.h>
#include <rocksdb/c.h>

#define KEY 10

static rocksdb_t *db;
static rocksdb_writeoptions_t *writing;
static rocksdb_readoptions_t *reading;
static uint64_t entries, value_bytes, streams;
static char *value;

struct round_of_clients {
    uint64_t until, batch;
    int over;
    double skew, low, high, middle; /* of the distribution; a skew of 0: uniform keys */
};

/* One thread: its random numbers and its puts. */
struct client {
    const struct round_of_clients *round;
    uint64_t state, puts;
};

static void must(char *error) {
    if (error) fail("rocksdb: %s", error);
}

static uint64_t next(uint64_t *state) { /* SplitMix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void key_at(char key[KEY + 1], uint64_t n) {
    snprintf(key, KEY + 1, "%010llu", (unsigned long long)(n % 10000000000u));
}

static double even(uint64_t *state) { return (double)(next(state) >> 11) * 0x1p-53; }

/* Rejection-inversion of W. Hörmann and G. Derflinger (1996): rank r has a frequency of 1 / r^skew. */
static double integral(double x, double skew) { return (pow(x, 1 - skew) - 1) / (1 - skew); }
static double inverse(double y, double skew) { return pow(y * (1 - skew) + 1, 1 / (1 - skew)); }

static uint64_t zipf(uint64_t *state, const struct round_of_clients *r) {
    for (;;) {
        double u = r->low + even(state) * (r->high - r->low), x = inverse(u, r->skew), rank = floor(x + 0.5);
        if (rank < 1) rank = 1;
        if (rank > (double)entries) rank = (double)entries;
        /* Near the middle of a rank it is taken without the exact test. */
        if (rank - x <= r->middle || u >= integral(rank + 0.5, r->skew) - pow(rank, -r->skew))
            return (uint64_t)rank - 1;
    }
}

static void chosen(struct client *c, char key[KEY + 1]) {
    const struct round_of_clients *r = c->round;
    /* Frequent keys are not neighbours. */
    key_at(key, r->skew > 0 ? zipf(&c->state, r) * 0x9e3779b1u % entries : next(&c->state) % entries);
}

static void *change(void *of) {
    struct client *c = of;
    char key[KEY + 1], *error = NULL;
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    while (now_ns(CLOCK_MONOTONIC) < c->round->until) {
        if (c->round->batch == 1) {
            chosen(c, key);
            rocksdb_put(db, writing, key, KEY, value, value_bytes, &error);
        } else {
            for (uint64_t i = 0; i < c->round->batch; i++) {
                chosen(c, key);
                rocksdb_writebatch_put(batch, key, KEY, value, value_bytes);
            }
            rocksdb_write(db, writing, batch, &error);
            rocksdb_writebatch_clear(batch);
        }
        must(error);
        c->puts += c->round->batch;
    }
    rocksdb_writebatch_destroy(batch);
    return NULL;
}

static struct round read_round;

/* Reads single entries until the round is over. */
static void *look(void *of) {
    struct client *c = of;
    char key[KEY + 1], *error = NULL;
    uint64_t before = now_ns(CLOCK_MONOTONIC), now;
    do {
        size_t length = 0;
        chosen(c, key);
        char *found = rocksdb_get(db, reading, key, KEY, &length, &error);
        must(error);
        if (!found || length != value_bytes) fail("%s has another value", key);
        rocksdb_free(found);
        now = now_ns(CLOCK_MONOTONIC);
        if (!counted(&read_round, before, now, 1)) break;
        before = now;
    } while (!__atomic_load_n(&c->round->over, __ATOMIC_RELAXED));
    return NULL;
}

static void start(pthread_t *thread, void *(*work)(void *), struct client *client) {
    if (pthread_create(thread, NULL, work, client)) fail("no thread");
}

static uint64_t counter(const char *name) {
    uint64_t count = 0;
    if (rocksdb_property_int(db, name, &count)) fail("rocksdb has no %s", name);
    return count;
}

/* Waits until no flush and no compaction runs or is due. */
static void settle(double seconds) {
    const struct timespec pause = {.tv_nsec = 10000000};
    uint64_t until = now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
    while (counter("rocksdb.num-running-compactions") || counter("rocksdb.compaction-pending") ||
           counter("rocksdb.num-running-flushes") || counter("rocksdb.mem-table-flush-pending")) {
        if (now_ns(CLOCK_MONOTONIC) > until) fail("compactions run for more than %.0f s", seconds);
        nanosleep(&pause, NULL);
    }
    printf("{\"settled\":true}\n");
    fflush(stdout);
}

static void run(const char *line) {
    uint64_t clients = (uint64_t)number(line, "clients", 0);
    double seconds = number(line, "seconds", 1);
    uint64_t began = now_ns(CLOCK_MONOTONIC), puts = 0;
    struct round_of_clients round = {.until = began + (uint64_t)(seconds * 1e9)};
    round.batch = (uint64_t)number(line, "batch", 1);
    round.skew = number(line, "skew", 0);
    round.low = integral(1.5, round.skew) - 1;
    round.high = integral((double)entries + 0.5, round.skew);
    round.middle = 2 - inverse(integral(2.5, round.skew) - pow(2, -round.skew), round.skew);
    struct round_of_clients even_keys = {.until = UINT64_MAX};
    struct client reader = {.round = &even_keys, .state = ++streams};
    pthread_t reads, threads[64];
    struct client all[64];
    if (clients > 64) fail("more than 64 clients");
    int reads_too = number(line, "reader", 0) > 0;
    if (reads_too) {
        begin_round(&read_round, "{\"seconds\":3600}");
        start(&reads, look, &reader);
    }
    for (uint64_t i = 0; i < clients; i++) {
        all[i] = (struct client){.round = &round, .state = ++streams};
        start(&threads[i], change, &all[i]);
    }
    if (!clients) {
        struct timespec pause = {.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
        nanosleep(&pause, NULL);
    }
    for (uint64_t i = 0; i < clients; i++) {
        pthread_join(threads[i], NULL);
        puts += all[i].puts;
    }
    double took = (double)(now_ns(CLOCK_MONOTONIC) - began) / 1e9, p99 = 0;
    if (reads_too) {
        __atomic_store_n(&even_keys.over, 1, __ATOMIC_RELAXED);
        pthread_join(reads, NULL);
        qsort(read_round.latencies, read_round.count, sizeof *read_round.latencies, by_size);
        p99 = read_round.latencies[(uint64_t)(0.99 * (double)(read_round.count - 1))] / 1000.0;
    }
    printf("{\"puts\":%llu,\"seconds\":%.6f,\"reads_p99_us\":%.3f}\n", (unsigned long long)puts, took, p99);
    fflush(stdout);
}

static void open_in(const char *path, uint64_t memory) {
    char *error = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    rocksdb_options_set_use_direct_reads(options, 1);
    rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
    rocksdb_options_set_max_background_jobs(options, 2);
    rocksdb_options_set_write_buffer_size(options, memory / 8);
    rocksdb_options_set_max_write_buffer_number(options, 4);
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(memory / 2));
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
    rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_options_set_block_based_table_factory(options, table);
    writing = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(writing, 1);
    reading = rocksdb_readoptions_create();
    db = rocksdb_open(options, path, &error);
    must(error);
}

/* Stores all entries in the order of their keys. */
static void fill_all(uint64_t fill, uint64_t points_most) {
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    uint64_t every = entries / points_most > fill ? entries / points_most : fill, since = 0;
    uint64_t from = now_ns(CLOCK_MONOTONIC);
    char key[KEY + 1], *error = NULL;
    printf("{\"ready\":true,\"filling\":[");
    for (uint64_t n = 1, points = 0; n <= entries; n++) {
        key_at(key, n - 1);
        rocksdb_writebatch_put(batch, key, KEY, value, value_bytes);
        since++;
        if (n % fill && n < entries) continue;
        rocksdb_write(db, writing, batch, &error);
        must(error);
        rocksdb_writebatch_clear(batch);
        if (since < every && n < entries) continue;
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        printf("%s[%llu,%.3f]", points++ ? "," : "", (unsigned long long)(n * (KEY + value_bytes)),
               (double)since / ((double)(now - from) / 1e9));
        from = now, since = 0;
    }
    printf("]}\n");
    fflush(stdout);
    rocksdb_writebatch_destroy(batch);
}

int main(void) {
    static char line[LINE_MAX_BYTES], path[4096];
    if (!fgets(line, sizeof line, stdin)) return 0;
    text(line, "path", path, sizeof path);
    entries = (uint64_t)number(line, "entries", 0);
    value_bytes = (uint64_t)number(line, "value", 0);
    if (!entries || entries > 9999999999u) fail("entries are 1 to 9999999999");
    value = malloc(value_bytes + 1);
    if (!value) fail("no memory");
    fill_noise((unsigned char *)value, value_bytes);
    open_in(path, (uint64_t)number(line, "memory", 0));
    fill_all((uint64_t)number(line, "batch", 1000), (uint64_t)number(line, "points", 40));
    while (fgets(line, sizeof line, stdin)) {
        double patience = number(line, "settle", 0);
        if (patience > 0) settle(patience);
        else run(line);
    }
    rocksdb_close(db);
    return 0;
}
