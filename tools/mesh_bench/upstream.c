/* Mock of an OpenAI-compatible worker for tools/bench_mesh, on loopback.
 *
 *   upstream PORT
 *
 * A POST of a path that ends in "completions" is answered with `max_tokens` tokens: one event, sent by itself, for each
 * token, then a finish event, a usage event if the body has "include_usage", and [DONE]. Without "stream": true, it is
 * answered with one JSON object. Other POSTs get 404, other requests a small JSON object. GET /pace?us=N sets the time
 * between tokens: 0 sends as fast as the sockets accept; else every active request gets one token each N us, like a
 * batched engine, and the first token at once.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 8192 /* also the limit of file descriptors */
#define INPUT_BYTES 65536
#define BACKLOG_BYTES 65536 /* unsent output of a connection; a connection that exceeds it is closed */
#define CHUNK "\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\""

struct connection {
    int fd, total, sent, has_usage, slot; /* slot in `active`; -1: no answer is being sent */
    int input_bytes, output_bytes;
    char input[INPUT_BYTES + 1], output[BACKLOG_BYTES];
};

static struct connection *connections[MAX_CONNECTIONS], *active[MAX_CONNECTIONS];
static int active_count, poller;
static int64_t pace; /* ns */

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void deactivate(struct connection *c) {
    if (c->slot < 0) return;
    active[c->slot] = active[--active_count];
    active[c->slot]->slot = c->slot;
    c->slot = -1;
}

static void close_connection(struct connection *c) {
    deactivate(c);
    close(c->fd);
    connections[c->fd] = NULL;
    free(c);
}

static void watch(struct connection *c, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (c->output_bytes ? EPOLLOUT : 0), .data.fd = c->fd};
    epoll_ctl(poller, operation, c->fd, &event);
}

/* Sends or keeps `n` bytes. Returns 0 if the connection is lost or exceeds its backlog. */
static int put(struct connection *c, const char *p, int n) {
    if (!c->output_bytes) {
        ssize_t sent = send(c->fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return 0;
        if (sent > 0) p += sent, n -= sent;
        if (!n) return 1;
    }
    if (c->output_bytes + n > BACKLOG_BYTES) return 0;
    memcpy(c->output + c->output_bytes, p, n);
    c->output_bytes += n;
    watch(c, EPOLL_CTL_MOD);
    return 1;
}

static int put_json(struct connection *c, const char *status, const char *json) {
    char response[2048];
    int n = snprintf(response, sizeof response, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                     status, strlen(json), json);
    return put(c, response, n);
}

static int put_token(struct connection *c) {
    char events[1024], chunk[1100];
    int n = snprintf(events, sizeof events, "data: {" CHUNK ",\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\" token\"},\"finish_reason\":null}]}\n\n",
                     c->sent ? "" : "\"role\":\"assistant\",");
    int size = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", n, events);
    if (!put(c, chunk, size)) return 0;
    if (++c->sent < c->total) return 1;
    n = snprintf(events, sizeof events, "data: {" CHUNK ",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n");
    if (c->has_usage)
        n += snprintf(events + n, sizeof events - n,
                      "data: {" CHUNK ",\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
                      c->total, c->total + 8);
    n += snprintf(events + n, sizeof events - n, "data: [DONE]\n\n");
    size = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n0\r\n\r\n", n, events);
    deactivate(c);
    return put(c, chunk, size);
}

/* Returns the text after `"name":` and spaces, or NULL. */
static const char *value_of(const char *body, const char *name) {
    const char *p = strstr(body, name);
    if (!p) return NULL;
    for (p += strlen(name); *p == ' ' || *p == ':'; p++) {}
    return p;
}

static int answer(struct connection *c, const char *head, const char *body) {
    int line = strcspn(head, "\r\n");
    if (!strncmp(head, "GET /pace?us=", 13)) {
        pace = atoll(head + 13) * 1000;
        return put_json(c, "200 OK", "{}");
    }
    if (strncmp(head, "POST", 4))
        return put_json(c, "200 OK", "{\"status\":\"ok\",\"object\":\"list\",\"model_path\":\"mock\",\"is_generation\":true,\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1,\"owned_by\":\"mock\"}]}");
    if (!memmem(head, line, "completions ", 12)) return put_json(c, "404 Not Found", "{}");
    const char *stream = value_of(body, "\"stream\""), *limit = value_of(body, "\"max_tokens\"");
    if (!limit) limit = value_of(body, "\"max_completion_tokens\""); /* sglang-router renames it */
    c->total = limit ? atoi(limit) : 16;
    if (c->total < 1) c->total = 1;
    if (!stream || *stream != 't') {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"id\":\"chatcmpl-0\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"ok\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":%d,\"total_tokens\":%d}}",
                 c->total, c->total + 8);
        return put_json(c, "200 OK", json);
    }
    static const char OK[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
    c->sent = 0;
    c->has_usage = strstr(body, "include_usage") != NULL;
    deactivate(c);
    c->slot = active_count;
    active[active_count++] = c;
    return put(c, OK, sizeof OK - 1) && (pace ? put_token(c) : 1);
}

/* Answers the complete requests of the input; a body has a length or is chunked. Returns 0 if the connection is lost. */
static int on_input(struct connection *c) {
    for (;;) {
        c->input[c->input_bytes] = 0;
        char *end = strstr(c->input, "\r\n\r\n");
        if (!end) return c->input_bytes < INPUT_BYTES;
        *end = 0;
        char *length = strcasestr(c->input, "\r\ncontent-length:"), *body = end + 4, *after;
        if (strcasestr(c->input, "\r\ntransfer-encoding:")) {
            char *last = strstr(body, "0\r\n\r\n");
            after = last ? last + 5 : NULL;
        } else {
            after = body + (length ? atol(length + 17) : 0);
            if (after > c->input + c->input_bytes) after = NULL;
        }
        if (!after) {
            *end = '\r';
            return c->input_bytes < INPUT_BYTES;
        }
        char next = *after;
        *after = 0;
        if (!answer(c, c->input, body)) return 0;
        *after = next;
        c->input_bytes -= after - c->input;
        memmove(c->input, after, c->input_bytes);
    }
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct connection *c = fd < MAX_CONNECTIONS ? malloc(sizeof *c) : NULL;
        if (!c) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->fd = fd;
        c->slot = -1;
        c->input_bytes = c->output_bytes = 0;
        connections[fd] = c;
        watch(c, EPOLL_CTL_ADD);
    }
}

static void on_ready(struct connection *c, uint32_t mask) {
    if (mask & EPOLLOUT && c->output_bytes) {
        ssize_t sent = send(c->fd, c->output, c->output_bytes, MSG_NOSIGNAL);
        if (sent > 0) {
            c->output_bytes -= sent;
            memmove(c->output, c->output + sent, c->output_bytes);
        }
        watch(c, EPOLL_CTL_MOD);
    }
    if (!(mask & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t n = recv(c->fd, c->input + c->input_bytes, INPUT_BYTES - c->input_bytes, 0);
    if (n > 0) c->input_bytes += n;
    if (n == 0 || (n < 0 && errno != EAGAIN) || (n > 0 && !on_input(c))) close_connection(c);
}

/* Sends one token to every active request that has no unsent output. */
static int step(void) {
    int sent = 0;
    for (int k = active_count - 1; k >= 0; k--) {
        struct connection *c = active[k];
        if (c->output_bytes && !pace) continue;
        sent++;
        if (!put_token(c)) close_connection(c);
    }
    return sent;
}

static void run(int listener) {
    static struct epoll_event ready[512];
    int64_t last = now();
    int is_blocked = 0; /* no active request accepts output */
    for (;;) {
        int64_t wait = pace ? last + pace - now() : 0;
        struct timespec limit = {wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0};
        int n = epoll_pwait2(poller, ready, 512, active_count && !is_blocked ? &limit : NULL, NULL);
        for (int k = 0; k < n; k++) {
            int fd = ready[k].data.fd;
            if (fd == listener) accept_all(listener);
            else if (connections[fd]) on_ready(connections[fd], ready[k].events);
        }
        int64_t t = now();
        is_blocked = 0;
        if (!pace) is_blocked = !step();
        else if (t - last >= pace) {
            last = t - last > 2 * pace ? t : last + pace;
            step();
        }
    }
}

int main(int argc, char **argv) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    if (argc != 2) {
        fprintf(stderr, "usage: upstream PORT\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) {
        perror("upstream");
        return 1;
    }
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    run(listener);
}
