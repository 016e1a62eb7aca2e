/* Many WebSocket clients in one process: connect, upgrade, send what they are told, then only read and count.
 *
 * One epoll loop, one read buffer for all. A frame is parsed as far as its length and the first bytes of its payload:
 * what begins with {"type":"event" is counted, and where it holds "sent":<microseconds> (CLOCK_MONOTONIC) its age goes
 * into a histogram. Pings are answered. So the load side costs about one recv() for each delivery and no more.
 *
 *   load_client PORT PATH COUNT FIRST [HEADER-FILE] [FRAME-FILE]
 *
 * HEADER-FILE: lines put into the upgrade of connection i: line i % lines. FRAME-FILE: the same for the first frame sent
 * once the upgrade is answered. Commands on stdin, one a line, each answered by one line of JSON on stdout:
 *
 *   ready N      when N frames that begin with {"type":"live" have come in all
 *   events N     when N events have come in all since the last reset
 *   reset        at once: events, latencies and closed are zero again
 *   stop I       at once: connection I is not read any more
 *   go I         at once: it is read again
 *   quit
 *
 * The answer: {"events":..,"live":..,"bytes":..,"open":..,"closed":..,"p50_us":..,"p99_us":..,"max_us":..,"cpu_us":..}
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PEEK 4096
#define BUCKETS 4096
#define BUCKET_US 250

struct conn {
    int fd, upgraded, stopped, hlen;
    uint8_t head[14];
    uint64_t left;            /* payload bytes still to come */
    uint32_t taken;           /* payload bytes kept in peek */
    uint8_t opcode;
    char *peek;               /* the beginning of a payload that came in pieces */
};

static struct conn *conns;
static int count, epfd, open_now, closed;
static uint64_t events, live, bytes, histogram[BUCKETS + 1], max_us;
static char buffer[1 << 18];
static char **frames;
static int frame_lines;

static void die(const char *what) { perror(what); exit(2); }

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + t.tv_nsec / 1000;
}

static int lines_of(const char *path, char ***out) {
    FILE *f = fopen(path, "r");
    if (!f) die(path);
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int lines = 0;
    *out = NULL;
    while ((n = getline(&line, &room, f)) > 0) {
        if (line[n - 1] == '\n') line[n - 1] = 0;
        *out = realloc(*out, (lines + 1) * sizeof **out);
        (*out)[lines++] = strdup(line);
    }
    free(line);
    fclose(f);
    return lines;
}

static void send_all(int fd, const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN || errno == EINTR) continue;
            return; /* the reader will see that it is gone */
        }
        at += n;
        size -= n;
    }
}

static void send_frame(struct conn *c, uint8_t opcode, const char *data, size_t size) {
    char out[16384];
    size_t n = 0;
    if (size > sizeof out - 16) exit(3);
    out[n++] = 0x80 | opcode;
    if (size < 126) out[n++] = 0x80 | size;
    else { out[n++] = 0x80 | 126; out[n++] = size >> 8; out[n++] = size & 255; }
    memset(out + n, 0, 4); /* a mask of zeros */
    n += 4;
    memcpy(out + n, data, size);
    send_all(c->fd, out, n + size);
}

static void gone(struct conn *c) {
    epoll_ctl(epfd, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->fd = -1;
    open_now--;
    closed++;
}

static void payload_done(struct conn *c, const char *data, size_t size, uint64_t when) {
    if (c->opcode == 9) { send_frame(c, 10, data, size < 125 ? size : 125); return; }
    if (c->opcode == 8) { send_frame(c, 8, data, size < 125 ? size : 125); return; }
    if (size > 14 && !memcmp(data, "{\"type\":\"event", 14)) {
        events++;
        const char *sent = memmem(data, size, "\"sent\":", 7);
        if (sent) {
            uint64_t age = when - strtoull(sent + 7, NULL, 10);
            uint64_t at = age / BUCKET_US;
            histogram[at < BUCKETS ? at : BUCKETS]++;
            if (age > max_us) max_us = age;
        }
    } else if (size > 13 && !memcmp(data, "{\"type\":\"live", 13)) live++;
}

static void parse(struct conn *c, const char *data, size_t size, uint64_t when) {
    while (size) {
        if (!c->left && !c->taken) {
            while (size && (c->hlen < 2 || c->hlen < 2 + ((c->head[1] & 127) == 126 ? 2 : (c->head[1] & 127) == 127 ? 8 : 0))) {
                c->head[c->hlen++] = *data++;
                size--;
            }
            if (c->hlen < 2) return;
            int extra = (c->head[1] & 127) == 126 ? 2 : (c->head[1] & 127) == 127 ? 8 : 0;
            if (c->hlen < 2 + extra) return;
            uint64_t n = c->head[1] & 127;
            if (extra) { n = 0; for (int i = 0; i < extra; i++) n = n << 8 | c->head[2 + i]; }
            c->opcode = c->head[0] & 15;
            c->hlen = 0;
            c->left = n;
            if (!n) { payload_done(c, "", 0, when); continue; }
            if (!size) return;
        }
        if (!c->taken && size >= c->left) { /* the usual case: a payload in one piece */
            size_t n = c->left;
            c->left = 0;
            payload_done(c, data, n, when);
            data += n;
            size -= n;
            continue;
        }
        if (!c->peek) c->peek = malloc(PEEK);
        size_t n = size < c->left ? size : c->left;
        size_t keep = c->taken < PEEK ? (n < PEEK - c->taken ? n : PEEK - c->taken) : 0;
        memcpy(c->peek + c->taken, data, keep);
        c->taken += keep;
        c->left -= n;
        data += n;
        size -= n;
        if (!c->left) {
            payload_done(c, c->peek, c->taken, when);
            c->taken = 0;
            free(c->peek);
            c->peek = NULL;
        }
    }
}

static void readable(struct conn *c) {
    if (c->fd < 0) return;
    ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) { gone(c); return; }
    bytes += n;
    if (!c->upgraded) {
        char *end = memmem(buffer, n, "\r\n\r\n", 4);
        if (!end || memcmp(buffer, "HTTP/1.1 101", 12)) { fprintf(stderr, "%.*s\n", (int)n, buffer); exit(4); }
        c->upgraded = 1;
        if (frame_lines) {
            const char *frame = frames[(c - conns) % frame_lines];
            send_frame(c, 1, frame, strlen(frame));
        }
        size_t used = end + 4 - buffer;
        if ((size_t)n > used) parse(c, buffer + used, n - used, now_us());
        return;
    }
    parse(c, buffer, n, now_us());
}

static void connect_one(int i, int port, const char *path, char **headers, int header_lines, int first) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* 28,000 ports for one source address: another one for each 20,000 */
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + (first + i) / 20000)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0) die("socket");
    bind(fd, (struct sockaddr *)&from, sizeof from);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char request[8192];
    int n = snprintf(request, sizeof request,
                     "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s%s\r\n",
                     path, port, header_lines ? headers[i % header_lines] : "", header_lines ? "\r\n" : "");
    conns[i].fd = fd;
    send_all(fd, request, n);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &conns[i]};
    if (epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    open_now++;
}

static uint64_t percentile(double part) {
    uint64_t all = 0, seen = 0;
    for (int i = 0; i <= BUCKETS; i++) all += histogram[i];
    for (int i = 0; i <= BUCKETS; i++) {
        seen += histogram[i];
        if (all && seen >= part * all) return i == BUCKETS ? max_us : (uint64_t)(i + 1) * BUCKET_US;
    }
    return 0;
}

static void say(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    printf("{\"events\":%lu,\"live\":%lu,\"bytes\":%lu,\"open\":%d,\"closed\":%d,\"p50_us\":%lu,\"p99_us\":%lu,\"max_us\":%lu,"
           "\"at_us\":%lu,\"cpu_us\":%lu}\n",
           events, live, bytes, open_now, closed, percentile(0.5), percentile(0.99), max_us, now_us(),
           (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000ul + r.ru_utime.tv_usec + r.ru_stime.tv_usec);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 5) { fprintf(stderr, "load_client PORT PATH COUNT FIRST [HEADER-FILE] [FRAME-FILE]\n"); return 2; }
    int port = atoi(argv[1]);
    count = atoi(argv[3]);
    char **headers = NULL;
    int header_lines = argc > 5 && *argv[5] ? lines_of(argv[5], &headers) : 0;
    frame_lines = argc > 6 ? lines_of(argv[6], &frames) : 0;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    conns = calloc(count, sizeof *conns);
    epfd = epoll_create1(0);
    fcntl(0, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epfd, EPOLL_CTL_ADD, 0, &event);

    struct epoll_event ready[512];
    char line[256];
    size_t used = 0;
    uint64_t want_live = 0, want_events = 0;
    int started = 0;
    for (;;) {
        /* a few at a time, so that those that are open are read meanwhile */
        for (int i = 0; i < 32 && started < count; i++, started++)
            connect_one(started, port, argv[2], headers, header_lines, atoi(argv[4]));
        int n = epoll_wait(epfd, ready, 512, started < count ? 1 : -1);
        for (int i = 0; i < n; i++) {
            if (ready[i].data.ptr) { readable(ready[i].data.ptr); continue; }
            ssize_t got = read(0, line + used, sizeof line - 1 - used);
            if (got == 0) return 0;
            if (got < 0) continue;
            used += got;
            char *end;
            while ((end = memchr(line, '\n', used))) {
                *end = 0;
                uint64_t value = strchr(line, ' ') ? strtoull(strchr(line, ' ') + 1, NULL, 10) : 0;
                if (!strncmp(line, "ready", 5)) want_live = value;
                else if (!strncmp(line, "events", 6)) want_events = value;
                else if (!strncmp(line, "reset", 5)) { events = 0; max_us = 0; closed = 0; memset(histogram, 0, sizeof histogram); say(); }
                else if (!strncmp(line, "stop", 4) || !strncmp(line, "go", 2)) {
                    struct conn *c = &conns[value];
                    c->stopped = line[0] == 's';
                    struct epoll_event change = {.events = c->stopped ? 0 : EPOLLIN, .data.ptr = c};
                    if (c->fd >= 0) epoll_ctl(epfd, EPOLL_CTL_MOD, c->fd, &change);
                    say();
                } else if (!strncmp(line, "quit", 4)) return 0;
                used -= end + 1 - line;
                memmove(line, end + 1, used);
            }
        }
        if (want_live && live >= want_live) { want_live = 0; say(); }
        if (want_events && events >= want_events) { want_events = 0; say(); }
    }
}
