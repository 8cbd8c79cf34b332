/* A worker that measures redis-server through hiredis, as its users do (see contract.h). */
#include "contract.h"
#include <hiredis/hiredis.h>

enum what { GET, PUT, MULTI_GET, MULTI_PUT, QUEUE, APPEND, READ };

static redisContext *redis;
static enum what what;
static uint64_t size, keys, batch, total, pipeline;
static unsigned char *value;
static uint64_t seed = 1;

static redisReply *must(redisReply *reply, int type) {
    if (!reply) fail("redis-server: %s", redis->errstr);
    if (reply->type == REDIS_REPLY_ERROR) fail("redis-server: %s", reply->str);
    if (type && reply->type != type) fail("a reply of type %d instead of %d", reply->type, type);
    return reply;
}

static void done(redisReply *reply, int type) { freeReplyObject(must(reply, type)); }

static redisReply *command(int argc, const char **argv, const size_t *lengths) {
    return redisCommandArgv(redis, argc, argv, lengths);
}

static void set(const char *key) {
    const char *argv[] = {"SET", key, (char *)value};
    const size_t lengths[] = {3, 16, size};
    done(command(3, argv, lengths), REDIS_REPLY_STATUS);
}

static void get(const char *key) {
    const char *argv[] = {"GET", key};
    const size_t lengths[] = {3, 16};
    redisReply *reply = must(command(2, argv, lengths), REDIS_REPLY_STRING);
    if ((uint64_t)reply->len != size) fail("a value came back with %d bytes", (int)reply->len);
    freeReplyObject(reply);
}

static void many(int put) {
    static char (*names)[17];
    static const char **argv;
    static size_t *lengths;
    if (!names) {
        names = calloc(batch, sizeof *names);
        argv = calloc(2 * batch + 1, sizeof *argv);
        lengths = calloc(2 * batch + 1, sizeof *lengths);
        if (!names || !argv || !lengths) fail("no memory");
    }
    int n = 0;
    argv[n] = put ? "MSET" : "MGET";
    lengths[n++] = 4;
    for (uint64_t i = 0; i < batch; i++) {
        key_of(names[i], size, draw(&seed, (uint32_t)keys));
        argv[n] = names[i];
        lengths[n++] = 16;
        if (put) {
            argv[n] = (char *)value;
            lengths[n++] = size;
        }
    }
    redisReply *reply = must(command(n, argv, lengths), put ? REDIS_REPLY_STATUS : REDIS_REPLY_ARRAY);
    if (!put) {
        if (reply->elements != batch) fail("%d values came back", (int)reply->elements);
        for (uint64_t i = 0; i < batch; i++)
            if (reply->element[i]->type != REDIS_REPLY_STRING) fail("a key has no value");
    }
    freeReplyObject(reply);
}

/* GETs or SETs that are sent together. */
static void piped(void) {
    for (uint64_t i = 0; i < pipeline; i++) {
        char key[17];
        key_of(key, size, draw(&seed, (uint32_t)keys));
        const char *argv[] = {what == GET ? "GET" : "SET", key, (char *)value};
        const size_t lengths[] = {3, 16, size};
        if (redisAppendCommandArgv(redis, what == GET ? 2 : 3, argv, lengths)) fail("%s", redis->errstr);
    }
    for (uint64_t i = 0; i < pipeline; i++) {
        void *reply;
        if (redisGetReply(redis, &reply)) fail("redis-server: %s", redis->errstr);
        done(reply, what == GET ? REDIS_REPLY_STRING : REDIS_REPLY_STATUS);
    }
}

static void one(uint64_t i) {
    char key[17];
    if (pipeline > 1) {
        piped();
        return;
    }
    switch (what) {
    case GET: case PUT:
        key_of(key, size, draw(&seed, (uint32_t)keys));
        if (what == GET) get(key); else set(key);
        break;
    case MULTI_GET: many(0); break;
    case MULTI_PUT: many(1); break;
    case QUEUE:
        if (i % 2 == 0) {
            const char *argv[] = {"LPUSH", "queue", (char *)value};
            const size_t lengths[] = {5, 5, size};
            done(command(3, argv, lengths), REDIS_REPLY_INTEGER);
        } else {
            done(redisCommand(redis, "RPOP queue"), REDIS_REPLY_STRING);
        }
        break;
    case APPEND: {
        const char *argv[] = {"APPEND", "appended", (char *)value};
        const size_t lengths[] = {6, 8, size};
        redisReply *reply = must(command(3, argv, lengths), REDIS_REPLY_INTEGER);
        if ((uint64_t)reply->integer > total) done(redisCommand(redis, "UNLINK appended"), 0);
        freeReplyObject(reply);
        break;
    }
    case READ: {
        uint64_t at = draw(&seed, (uint32_t)(total / size)) * size;
        redisReply *reply = must(redisCommand(redis, "GETRANGE whole %llu %llu", (unsigned long long)at,
                                              (unsigned long long)(at + size - 1)), REDIS_REPLY_STRING);
        if ((uint64_t)reply->len != size) fail("a range came back with %d bytes", (int)reply->len);
        freeReplyObject(reply);
        break;
    }
    }
}

static void set_up(const char *line) {
    char address[256], op[32];
    text(line, "address", address, sizeof address);
    text(line, "op", op, sizeof op);
    size = (uint64_t)number(line, "size", 64);
    keys = (uint64_t)number(line, "keys", 1);
    batch = (uint64_t)number(line, "batch", 1);
    total = (uint64_t)number(line, "total", 0);
    pipeline = (uint64_t)number(line, "pipeline", 1);
    const char *ops[] = {"get", "put", "multi_get", "multi_put", "queue", "append", "read"};
    for (what = GET; what <= READ && strcmp(op, ops[what]); what++) {}
    if (pipeline > 1 && what > PUT) fail("no pipeline of '%s'", op);
    if (what > READ) fail("hiredis does not do '%s'", op);
    if (!strncmp(address, "unix:", 5)) {
        redis = redisConnectUnix(address + 5);
    } else {
        char *colon = strrchr(address, ':');
        if (!colon) fail("no port in %s", address);
        *colon = 0;
        redis = redisConnect(address, atoi(colon + 1));
    }
    if (!redis || redis->err) fail("cannot connect to %s: %s", address, redis ? redis->errstr : "");
    free(value);
    value = malloc(size ? size : 1);
    if (!value) fail("no memory");
    fill_noise(value, size);
    if (what <= MULTI_PUT) {
        for (uint32_t i = 0; i < keys; i++) {
            char key[17];
            key_of(key, size, i);
            set(key);
        }
    } else if (what == READ) {
        done(redisCommand(redis, "DEL whole"), 0);
        /* Small ranges are read from a string that was appended in large pieces. */
        uint64_t piece = size > 1 << 20 ? size : 1 << 20;
        unsigned char *bytes = malloc(piece);
        if (!bytes) fail("no memory");
        fill_noise(bytes, piece);
        for (uint64_t at = 0; at + piece <= total; at += piece) {
            const char *argv[] = {"APPEND", "whole", (char *)bytes};
            const size_t lengths[] = {6, 5, piece};
            done(command(3, argv, lengths), REDIS_REPLY_INTEGER);
        }
        free(bytes);
    } else {
        done(redisCommand(redis, "DEL queue appended"), 0);
    }
    char about[64];
    snprintf(about, sizeof about, "hiredis %d.%d.%d", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    ready(about);
}

int main(void) {
    static char line[LINE_MAX_BYTES];
    while (fgets(line, sizeof line, stdin)) {
        if (field(line, "system")) {
            if (redis) redisFree(redis);
            set_up(line);
            continue;
        }
        struct round round;
        begin_round(&round, line);
        uint64_t before = round.began, now;
        uint64_t units = what == MULTI_GET || what == MULTI_PUT ? batch : pipeline;
        round.piped = pipeline > 1;
        uint64_t i = 0;
        int more;
        do {
            one(i++);
            now = now_ns(CLOCK_MONOTONIC);
            more = counted(&round, before, now, units);
            before = now;
        } while (more || (what == QUEUE && i % 2));
        end_round(&round);
    }
    return 0;
}
