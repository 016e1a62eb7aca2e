/* Many WebSocket clients in one process: connect, upgrade, send what they are told, then only read and count.
 *
 * One epoll loop, one read buffer for all. A frame is parsed as far as its length and the first bytes of its payload:
 * its type is counted, and where an event holds "sent":<microseconds> (CLOCK_MONOTONIC) its age goes into a histogram.
 * Pings are answered. So the load side costs about one recv() for each delivery and no more.
 *
 *   load_client [-H HEADER-FILE] [-F FRAME-FILE] [-w WINDOW] [-s] [-z] PORT PATH COUNT
 *
 * HEADER-FILE: lines put into the upgrade of connection i: line i % lines. FRAME-FILE: the same for the first frame sent
 * once the upgrade is answered. WINDOW: how many connections may wait for the answer to their upgrade (1,000): more
 * than the server's backlog would make the kernel drop some and ask again a second later. -s: small socket buffers, and
 * small segments so that the sender's stay small too: who stops reading is full after some 100 KB instead of megabytes.
 * -z: offer permessage-deflate, as browsers do; a frame that is compressed for all that ends the run.
 *
 * Commands on stdin, one a line, each answered by one line of JSON on stdout:
 *
 *   welcome N    when N frames of type welcome have come in all
 *   ready N      when N of type live have
 *   events N     when N events have come in all since the last reset
 *   say          at once
 *   reset        at once: what the answer counts is zero again, but for welcome, live and open
 *   stop I       at once: connection I is not read any more
 *   go I         at once: it is read again
 *   quit
 *
 * The answer, one object: events, reads (calls of recv() that brought one), welcome, live, resync and error (frames of
 * that type), bytes, open, closed, close_code (the last one a peer sent), p50_us, p99_us, max_us (ages), beats
 * (heartbeats), beat_gap_us (the longest wait for one on any connection, until now), started_us (when the first
 * connected), at_us, cpu_us.
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
#define BUCKETS 20000
#define BUCKET_US 50

enum stage { CONNECTING, UPGRADING, OPEN };

struct conn {
    int fd, stopped, hlen;
    enum stage stage;
    uint64_t beat_us;         /* when the last heartbeat came, or the upgrade was answered */
    uint8_t head[14];
    uint64_t left;            /* payload bytes still to come */
    uint32_t taken;           /* payload bytes kept in peek */
    uint8_t opcode;
    char *peek;               /* the beginning of a payload that came in pieces */
};

static struct conn *conns;
static int deflates;
static int count, epfd, open_now, closed, close_code, waiting;
static uint64_t events, reads, live, welcome, resync, error, bytes, histogram[BUCKETS + 1], max_us;
static uint64_t beats, beat_gap_us, started_us;
static char buffer[1 << 18];
static char **headers, **frames;
static int header_lines, frame_lines;
static const char *path;
static int port;

static void die(const char *what) { perror(what); exit(2); }

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + t.tv_nsec / 1000;
}

static int lines_of(const char *name, char ***out) {
    FILE *f = fopen(name, "r");
    if (!f) die(name);
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
    if (c->stage != OPEN) waiting--;
    c->fd = -1;
    open_now--;
    closed++;
}

static void listen_for(struct conn *c, uint32_t what) {
    struct epoll_event change = {.events = what, .data.ptr = c};
    if (c->fd >= 0 && epoll_ctl(epfd, EPOLL_CTL_MOD, c->fd, &change)) die("epoll_ctl");
}

static void waited(uint64_t since, uint64_t when) {
    if (when - since > beat_gap_us) beat_gap_us = when - since;
}

static int is(const char *data, size_t size, const char *beginning) {
    size_t n = strlen(beginning);
    return size > n && !memcmp(data, beginning, n);
}

static void payload_done(struct conn *c, const char *data, size_t size, uint64_t when) {
    if (c->opcode == 9) { send_frame(c, 10, data, size < 125 ? size : 125); return; }
    if (c->opcode == 8) {
        if (size >= 2) close_code = (uint8_t)data[0] << 8 | (uint8_t)data[1];
        send_frame(c, 8, data, size < 125 ? size : 125);
        return;
    }
    if (is(data, size, "{\"type\":\"event\"")) {
        events++;
        const char *sent = memmem(data, size, "\"sent\":", 7);
        if (sent) {
            uint64_t age = when - strtoull(sent + 7, NULL, 10);
            uint64_t at = age / BUCKET_US;
            histogram[at < BUCKETS ? at : BUCKETS]++;
            if (age > max_us) max_us = age;
        }
    } else if (is(data, size, "{\"type\":\"live\"")) live++;
    else if (is(data, size, "{\"type\":\"heartbeat\"")) {
        beats++;
        waited(c->beat_us, when);
        c->beat_us = when;
    } else if (is(data, size, "{\"type\":\"welcome\"")) welcome++;
    else if (is(data, size, "{\"type\":\"resync\"")) resync++;
    else if (is(data, size, "{\"type\":\"error\"")) {
        error++;
        fprintf(stderr, "%.*s\n", (int)(size < 400 ? size : 400), data);
    }
}

/* as far as it is known */
static int header_size(const struct conn *c) {
    int n = c->hlen < 2 ? 0 : c->head[1] & 127;
    return n == 126 ? 4 : n == 127 ? 10 : 2;
}

static void parse(struct conn *c, const char *data, size_t size, uint64_t when) {
    while (size) {
        if (!c->left && !c->taken) {
            while (size && c->hlen < header_size(c)) {
                c->head[c->hlen++] = *data++;
                size--;
            }
            if (c->hlen < header_size(c)) return;
            int extra = header_size(c) - 2;
            uint64_t n = c->head[1] & 127;
            if (extra) { n = 0; for (int i = 0; i < extra; i++) n = n << 8 | c->head[2 + i]; }
            if (c->head[0] & 0x40) { fprintf(stderr, "a compressed frame, which is not read here\n"); exit(5); }
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
    ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) { gone(c); return; }
    bytes += n;
    uint64_t when = now_us();
    const char *data = buffer;
    if (c->stage == UPGRADING) {
        char *end = memmem(buffer, n, "\r\n\r\n", 4);
        if (!end || memcmp(buffer, "HTTP/1.1 101", 12)) { fprintf(stderr, "%.*s\n", (int)n, buffer); exit(4); }
        if (deflates && !memmem(buffer, end - buffer, "permessage-deflate", 18)) { fprintf(stderr, "no compression\n"); exit(6); }
        c->stage = OPEN;
        c->beat_us = when;
        waiting--;
        if (frame_lines) {
            const char *frame = frames[(c - conns) % frame_lines];
            send_frame(c, 1, frame, strlen(frame));
        }
        data = end + 4;
    }
    uint64_t before = events;
    parse(c, data, buffer + n - data, when);
    reads += events != before;
}

static void connected(struct conn *c) {
    int problem = 0;
    socklen_t size = sizeof problem;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &problem, &size) || problem) {
        errno = problem;
        die("connect");
    }
    int i = c - conns;
    char request[8192];
    int n = snprintf(request, sizeof request,
                     "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s%s%s\r\n",
                     path, port, deflates ? "Sec-WebSocket-Extensions: permessage-deflate\r\n" : "", header_lines ? headers[i % header_lines] : "", header_lines ? "\r\n" : "");
    c->stage = UPGRADING;
    send_all(c->fd, request, n);
    listen_for(c, EPOLLIN);
}

static void connect_one(int i, int small) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* 28,000 ports for one source address: another one for each 20,000 */
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + i / 20000)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1, segment = 536, room = 4096;
    if (fd < 0) die("socket");
    if (small) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
        setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    }
    /* the port when it connects: one that waits in TIME_WAIT for another server is free for this one */
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&from, sizeof from)) die("bind");
    if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    conns[i].fd = fd;
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = &conns[i]};
    if (epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    open_now++;
    waiting++;
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
    uint64_t now = now_us();
    for (int i = 0; i < count; i++)
        if (conns[i].fd >= 0 && conns[i].stage == OPEN && !conns[i].stopped) waited(conns[i].beat_us, now);
    printf("{\"events\":%lu,\"reads\":%lu,\"welcome\":%lu,\"live\":%lu,\"resync\":%lu,\"error\":%lu,\"bytes\":%lu,"
           "\"open\":%d,\"closed\":%d,\"close_code\":%d,\"p50_us\":%lu,\"p99_us\":%lu,\"max_us\":%lu,"
           "\"beats\":%lu,\"beat_gap_us\":%lu,\"started_us\":%lu,\"at_us\":%lu,\"cpu_us\":%lu}\n",
           events, reads, welcome, live, resync, error, bytes, open_now, closed, close_code, percentile(0.5),
           percentile(0.99), max_us, beats, beat_gap_us, started_us, now,
           (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000ul + r.ru_utime.tv_usec + r.ru_stime.tv_usec);
    fflush(stdout);
}

static void reset(void) {
    events = reads = bytes = resync = error = max_us = beats = beat_gap_us = 0;
    closed = close_code = 0;
    memset(histogram, 0, sizeof histogram);
    uint64_t now = now_us();
    for (int i = 0; i < count; i++) conns[i].beat_us = now;
}

static uint64_t want_welcome, want_live, want_events;

static void obey(char *line) {
    char *space = strchr(line, ' ');
    uint64_t value = space ? strtoull(space + 1, NULL, 10) : 0;
    if (!strncmp(line, "welcome", 7)) want_welcome = value;
    else if (!strncmp(line, "ready", 5)) want_live = value;
    else if (!strncmp(line, "events", 6)) want_events = value;
    else if (!strncmp(line, "say", 3)) say();
    else if (!strncmp(line, "reset", 5)) { reset(); say(); }
    else if (!strncmp(line, "quit", 4)) exit(0);
    else if ((!strncmp(line, "stop", 4) || !strncmp(line, "go", 2)) && value < (uint64_t)count) {
        struct conn *c = &conns[value];
        c->stopped = line[0] == 's';
        if (c->stage == OPEN) listen_for(c, c->stopped ? 0 : EPOLLIN);
        say();
    } else { fprintf(stderr, "no such command: %s\n", line); exit(2); }
}

int main(int argc, char **argv) {
    int window = 1000, small = 0, option;
    while ((option = getopt(argc, argv, "H:F:w:sz")) != -1) {
        if (option == 'H') header_lines = lines_of(optarg, &headers);
        else if (option == 'F') frame_lines = lines_of(optarg, &frames);
        else if (option == 'w') window = atoi(optarg);
        else if (option == 's') small = 1;
        else if (option == 'z') deflates = 1;
        else return 2;
    }
    if (argc - optind != 3) return 2;
    port = atoi(argv[optind]);
    path = argv[optind + 1];
    count = atoi(argv[optind + 2]);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    conns = calloc(count, sizeof *conns);
    for (int i = 0; i < count; i++) conns[i].fd = -1;
    epfd = epoll_create1(0);
    fcntl(0, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epfd, EPOLL_CTL_ADD, 0, &event);

    struct epoll_event ready[512];
    char line[256];
    size_t used = 0;
    int started = 0;
    started_us = now_us();
    for (;;) {
        while (started < count && waiting < window) connect_one(started++, small);
        int n = epoll_wait(epfd, ready, 512, -1);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (c && c->fd < 0) continue;
            if (c && c->stage == CONNECTING) { connected(c); continue; }
            if (c) { readable(c); continue; }
            ssize_t got = read(0, line + used, sizeof line - 1 - used);
            if (got == 0) return 0;
            if (got < 0) continue;
            used += got;
            char *end;
            while ((end = memchr(line, '\n', used))) {
                *end = 0;
                obey(line);
                used -= end + 1 - line;
                memmove(line, end + 1, used);
            }
        }
        if (want_welcome && welcome >= want_welcome) { want_welcome = 0; say(); }
        if (want_live && live >= want_live) { want_live = 0; say(); }
        if (want_events && events >= want_events) { want_events = 0; say(); }
    }
}
