/* Load generator of tools/bench_mesh: chat completions over HTTP/1.1 on loopback, streamed (SSE) or not.
 *
 *   load PORT MODE N SECONDS WARMUP TOKENS STREAM MODEL HEADER [NAME=PID ...]
 *
 * MODE c: N connections, each with one request at a time. MODE r: N requests/s on a fixed schedule, at most
 * MAX_CONNECTIONS at once; a request over that limit is counted as `overrun` and not sent. HEADER is one header line or
 * empty. The run ends WARMUP + SECONDS after its start. NAME=PID: a process whose CPU time is read at both ends of the
 * measured window; several processes may share a name.
 *
 * Prints one JSON object. `events` counts content events inside the window. A server may put several tokens into one
 * event, so `tokens` is `events` times (tokens per event of the finished answers), where the tokens of an answer are
 * its `usage.completion_tokens`, or its events if it has no usage.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 4096
#define MAX_SAMPLES 1000000
#define MAX_PROCESSES 256
#define LINE_BYTES 16384
#define SECOND 1000000000LL /* ns */

enum body_state { HEAD, SIZE, DATA, DATA_END, TRAILER, PLAIN };

struct connection {
    int fd, is_connecting, is_busy, is_last; /* is_last: the server closes it after this answer */
    int sent;                                /* bytes of the request */
    enum body_state state;
    long left;                               /* bytes of the chunk or body; -1: until the end of the connection */
    int events, usage, is_done;
    int64_t started;                         /* ns */
    int length;
    char line[LINE_BYTES];                   /* head, chunk size or body line */
};

static struct connection connections[MAX_CONNECTIONS];
static struct connection *idle[MAX_CONNECTIONS];
static int opened, idle_count, poller, port, wanted, is_stream, is_closed_loop, request_bytes;
static char request[LINE_BYTES];
static int64_t window_start, window_end;
static unsigned long requests, errors, wrong, overrun, events, all_events, all_tokens;
static uint32_t first_us[MAX_SAMPLES];
static int first_count;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static int in_window(int64_t t) { return t >= window_start && t < window_end; }

static void watch(struct connection *c, int operation, uint32_t mask) {
    struct epoll_event event = {.events = mask, .data.ptr = c};
    epoll_ctl(poller, operation, c->fd, &event);
}

static void open_connection(struct connection *c) {
    int one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->fd < 0 || (connect(c->fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)) {
        perror("connect");
        exit(1);
    }
    c->is_connecting = 1;
    watch(c, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static void send_request(struct connection *c) {
    ssize_t n = send(c->fd, request + c->sent, request_bytes - c->sent, MSG_NOSIGNAL);
    if (n > 0) c->sent += n;
    watch(c, EPOLL_CTL_MOD, c->sent < request_bytes ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void start(struct connection *c) {
    c->is_busy = 1;
    c->sent = c->is_last = c->events = c->usage = c->is_done = c->length = 0;
    c->state = HEAD;
    c->started = now();
    if (!c->is_connecting) send_request(c);
}

static void record_first(int64_t t, struct connection *c) {
    if (in_window(t) && first_count < MAX_SAMPLES) first_us[first_count++] = (t - c->started) / 1000;
}

static void finish(struct connection *c, int is_ok, int64_t t) {
    int tokens = c->usage ? c->usage : c->events;
    if (is_ok && is_stream && !c->is_done) is_ok = 0; /* ended before `data: [DONE]` */
    if (is_ok) {
        all_events += c->events;
        all_tokens += tokens;
        if (!is_stream) record_first(t, c);
    }
    if (in_window(t)) {
        requests += is_ok;
        errors += !is_ok;
        wrong += is_ok && tokens != wanted;
    }
    c->is_busy = 0;
    if (c->is_last || !is_ok) {
        close(c->fd);
        open_connection(c);
    }
    if (is_closed_loop) start(c);
    else idle[idle_count++] = c;
}

static void on_line(struct connection *c, int64_t t) {
    c->line[c->length] = 0;
    char *usage = strstr(c->line, "\"completion_tokens\":");
    if (usage) c->usage = atoi(usage + 20);
    if (strncmp(c->line, "data:", 5)) return;
    if (strstr(c->line, "[DONE]")) c->is_done = 1;
    char *content = strstr(c->line, "\"content\":");
    if (!content) return;
    content += 10;
    while (*content == ' ') content++;
    if (content[0] != '"' || content[1] == '"') return; /* null or empty */
    if (!c->events++) record_first(t, c);
    events += in_window(t);
}

static void on_body(struct connection *c, const char *p, long n, int64_t t) {
    for (; n--; p++) {
        if (*p == '\n') {
            on_line(c, t);
            c->length = 0;
        } else if (c->length < LINE_BYTES - 1) {
            c->line[c->length++] = *p;
        }
    }
}

/* Reads the status and the framing of a response. Returns 0 if the status is not 200. */
static int on_head(struct connection *c) {
    static int shown;
    c->line[c->length] = 0;
    c->is_last = strcasestr(c->line, "\r\nconnection: close") != NULL;
    char *length = strcasestr(c->line, "\r\ncontent-length:");
    c->left = length ? atol(length + 17) : -1;
    c->state = strcasestr(c->line, "\r\ntransfer-encoding: chunked") ? SIZE : PLAIN;
    c->length = 0;
    if (atoi(c->line + 9) == 200) return 1;
    if (shown++ < 2) fprintf(stderr, "load: %.*s\n", (int)strcspn(c->line, "\r\n"), c->line);
    return 0;
}

/* Consumes some of [p, end) and returns how much; sets *ended to 1 after an answer and to -1 after an error. */
static long consume(struct connection *c, const char *p, const char *end, int64_t t, int *ended) {
    long n = end - p;
    if (c->state == DATA || c->state == PLAIN) {
        if (c->left >= 0 && n > c->left) n = c->left;
        on_body(c, p, n, t);
        if (c->left >= 0) c->left -= n;
        if (c->left) return n;
        if (c->state == DATA) {
            c->state = DATA_END;
        } else {
            on_line(c, t); /* a JSON body has no final newline */
            *ended = 1;
        }
        return n;
    }
    if (c->state == DATA_END) {
        if (*p == '\n') c->state = SIZE;
        return 1;
    }
    if (c->state == TRAILER) {
        if (*p == '\n') {
            on_line(c, t); /* the body may end without a newline */
            *ended = 1;
        }
        return 1;
    }
    if (c->length < LINE_BYTES - 1) c->line[c->length++] = *p;
    if (c->state == HEAD) {
        if (c->length >= 4 && !memcmp(c->line + c->length - 4, "\r\n\r\n", 4) && !on_head(c)) *ended = -1;
    }
    return 1;
}

/* Chunk sizes need a line of their own, because a body line may continue over chunks. */
static long read_size(struct connection *c, const char *p, const char *end) {
    long n = 0;
    while (p + n < end) {
        char digit = p[n++];
        if (digit == '\n') {
            c->state = c->left ? DATA : TRAILER;
            return n;
        }
        if (digit >= '0' && digit <= '9') c->left = c->left * 16 + digit - '0';
        else if (digit >= 'a' && digit <= 'f') c->left = c->left * 16 + digit - 'a' + 10;
        else if (digit >= 'A' && digit <= 'F') c->left = c->left * 16 + digit - 'A' + 10;
    }
    return n;
}

static void on_bytes(struct connection *c, const char *p, long n, int64_t t) {
    const char *end = p + n;
    while (p < end && c->is_busy) {
        int ended = 0;
        enum body_state before = c->state;
        p += before == SIZE ? read_size(c, p, end) : consume(c, p, end, t, &ended);
        if (c->state == SIZE && before != SIZE) c->left = 0;
        if (ended) {
            c->is_last |= ended < 0;
            finish(c, ended > 0, t);
            return;
        }
    }
}

static void on_ready(struct connection *c, uint32_t mask) {
    static char bytes[1 << 16];
    if (mask & EPOLLOUT) {
        c->is_connecting = 0;
        if (c->is_busy && c->sent < request_bytes) send_request(c);
        else watch(c, EPOLL_CTL_MOD, EPOLLIN);
    }
    if (!(mask & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    if (n > 0) {
        on_bytes(c, bytes, n, now());
    } else if (n == 0 || errno != EAGAIN) {
        c->is_last = 1;
        if (c->is_busy) {
            finish(c, c->state == PLAIN && c->left < 0, now());
        } else {
            close(c->fd);
            open_connection(c);
        }
    }
}

static void start_next(void) {
    struct connection *c;
    if (idle_count) {
        c = idle[--idle_count];
    } else if (opened < MAX_CONNECTIONS) {
        c = &connections[opened++];
        open_connection(c);
    } else {
        overrun++;
        return;
    }
    start(c);
}

static char *names[MAX_PROCESSES];
static int pids[MAX_PROCESSES], process_count;
static double before_us[MAX_PROCESSES];

/* us of all live threads of a process; their schedstat is in ns. */
static double cpu_us(int pid) {
    char path[300];
    double sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        unsigned long long ns = 0;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", pid, entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%llu", &ns) == 1) sum += ns / 1e3;
        fclose(file);
    }
    if (folder) closedir(folder);
    return sum;
}

static double own_us(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 + r.ru_utime.tv_usec + r.ru_stime.tv_usec;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void print_result(double wall, double own) {
    double per_event = all_events ? (double)all_tokens / all_events : 1;
    double tokens = is_stream ? events * per_event : requests;
    qsort(first_us, first_count, sizeof *first_us, ascending);
    printf("{\"wall_s\":%.4f,\"requests\":%lu,\"tokens\":%.1f,\"events\":%lu,\"errors\":%lu,\"wrong\":%lu,\"overrun\":%lu",
           wall, requests, tokens, events, errors, wrong, overrun);
    printf(",\"first_p50_us\":%u,\"first_p99_us\":%u", first_count ? first_us[first_count / 2] : 0,
           first_count ? first_us[(int)(first_count * 0.99)] : 0);
    printf(",\"cpu_us\":{\"load\":%.0f", own);
    for (int k = 0; k < process_count; k++) {
        double sum = 0;
        int is_repeated = 0;
        for (int j = 0; j < process_count; j++) {
            if (strcmp(names[j], names[k])) continue;
            is_repeated |= j < k;
            sum += cpu_us(pids[j]) - before_us[j];
        }
        if (!is_repeated) printf(",\"%s\":%.0f", names[k], sum);
    }
    printf("}}\n");
}

static void run(double rate_or_count) {
    static struct epoll_event ready[512];
    int64_t next = now(), period = is_closed_loop ? 0 : SECOND / rate_or_count, begun = 0;
    double own = 0;
    for (int k = 0; is_closed_loop && k < (int)rate_or_count; k++) start_next();
    for (;;) {
        int64_t t = now();
        if (!begun && t >= window_start) {
            begun = t;
            own = own_us();
            for (int k = 0; k < process_count; k++) before_us[k] = cpu_us(pids[k]);
        }
        if (t >= window_end) {
            print_result((t - begun) / 1e9, own_us() - own);
            return;
        }
        for (; !is_closed_loop && next <= t; next += period) start_next();
        int64_t until = begun ? window_end : window_start;
        if (!is_closed_loop && next < until) until = next;
        struct timespec wait = {(until - t) / SECOND, (until - t) % SECOND};
        int n = epoll_pwait2(poller, ready, 512, &wait, NULL);
        for (int k = 0; k < n; k++) on_ready(ready[k].data.ptr, ready[k].events);
    }
}

int main(int argc, char **argv) {
    char body[4096];
    if (argc < 10) {
        fprintf(stderr, "usage: load PORT MODE N SECONDS WARMUP TOKENS STREAM MODEL HEADER [NAME=PID ...]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    port = atoi(argv[1]);
    is_closed_loop = argv[2][0] == 'c';
    double count = atof(argv[3]);
    if (count < 1 || count > MAX_CONNECTIONS) {
        fprintf(stderr, "load: N must be from 1 to %d\n", MAX_CONNECTIONS);
        return 2;
    }
    wanted = atoi(argv[6]);
    is_stream = atoi(argv[7]);
    for (int k = 10; k < argc && process_count < MAX_PROCESSES; k++) {
        char *equals = strchr(argv[k], '=');
        if (!equals) continue;
        *equals = 0;
        names[process_count] = argv[k];
        pids[process_count++] = atoi(equals + 1);
    }
    int n = snprintf(body, sizeof body,
                     "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"Explain in some sentences how a "
                     "paged KV cache works and why it helps a server that runs many requests at once. Be brief.\"}],"
                     "\"max_tokens\":%d,\"temperature\":0.7,\"stream\":%s}",
                     argv[8], wanted, is_stream ? "true,\"stream_options\":{\"include_usage\":true}" : "false");
    request_bytes = snprintf(request, sizeof request,
                             "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
                             "content-type: application/json\r\naccept: */*\r\n%s%scontent-length: %d\r\n\r\n%s",
                             port, argv[9], *argv[9] ? "\r\n" : "", n, body);
    poller = epoll_create1(EPOLL_CLOEXEC);
    window_start = now() + (int64_t)(atof(argv[5]) * SECOND);
    window_end = window_start + (int64_t)(atof(argv[4]) * SECOND);
    run(count);
    return 0;
}
