/* delay INNER OUTER MICROSECONDS: a cable with a delay, for kernels that have no netem.
 *
 * Makes two tap devices. INNER is then moved into a host, OUTER to the bridge. Frames that come in at
 * INNER leave at OUTER after the delay, those of the other direction at once: two hosts with one such
 * cable each see the delay once per way. Prints "ready" when both taps are there, and runs until it is
 * killed; the taps go with it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE_FRAMES = 8192, FRAME_BYTES = 2048, BURST_FRAMES = 32 };

static const long long NS_PER_S = 1000000000LL;

struct frame {
  long long due_ns;
  ssize_t length;
  char bytes[FRAME_BYTES];
};

/* A ring: frame number i stands at i % QUEUE_FRAMES, `first` to `end` - 1 are waiting. */
static struct frame queue[QUEUE_FRAMES];
static unsigned first, end;

static int open_tap(const char *name) {
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
  int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (tap < 0 || ioctl(tap, TUNSETIFF, &request) < 0) {
    perror(name);
    exit(1);
  }
  return tap;
}

static long long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* A frame that cannot be written is lost, as on a real cable; a tap that is gone ends the program. */
static void put(int tap, const char *bytes, ssize_t length) {
  if (write(tap, bytes, length) < 0 && errno == EBADFD) exit(1);
}

static void send_due(int tap) {
  long long now = now_ns();
  for (; first != end && queue[first % QUEUE_FRAMES].due_ns <= now; first++)
    put(tap, queue[first % QUEUE_FRAMES].bytes, queue[first % QUEUE_FRAMES].length);
}

static int take(int tap, long long delay_ns) {
  int taken = 0;
  for (; taken < BURST_FRAMES && end - first < QUEUE_FRAMES; taken++) {
    struct frame *frame = &queue[end % QUEUE_FRAMES];
    frame->length = read(tap, frame->bytes, FRAME_BYTES);
    if (frame->length <= 0) break;
    frame->due_ns = now_ns() + delay_ns;
    end++;
  }
  return taken;
}

static int pass(int from, int to) {
  char bytes[FRAME_BYTES];
  int passed = 0;
  for (; passed < BURST_FRAMES; passed++) {
    ssize_t length = read(from, bytes, FRAME_BYTES);
    if (length <= 0) break;
    put(to, bytes, length);
  }
  return passed;
}

/* Sleeps until a frame comes in or the first waiting one is due. */
static void wait_for_frames(int inner, int outer) {
  short wants_inner = end - first < QUEUE_FRAMES ? POLLIN : 0; /* a full queue leaves it to the tap */
  struct pollfd taps[2] = {{inner, wants_inner, 0}, {outer, POLLIN, 0}};
  struct timespec rest, *limit = NULL;
  if (first != end) {
    long long rest_ns = queue[first % QUEUE_FRAMES].due_ns - now_ns();
    if (rest_ns <= 0) return;
    rest = (struct timespec){rest_ns / NS_PER_S, rest_ns % NS_PER_S};
    limit = &rest;
  }
  if (ppoll(taps, 2, limit, NULL) < 0 && errno != EINTR) exit(1);
  if ((taps[0].revents | taps[1].revents) & (POLLERR | POLLNVAL)) { /* a tap that is down: no busy loop */
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fputs("usage: delay INNER OUTER MICROSECONDS\n", stderr);
    return 2;
  }
  long long delay_ns = atoll(argv[3]) * 1000;
  int inner = open_tap(argv[1]), outer = open_tap(argv[2]);
  struct sched_param priority = {.sched_priority = 10};
  sched_setscheduler(0, SCHED_FIFO, &priority); /* where it is refused, delays are less exact */
  prctl(PR_SET_TIMERSLACK, 1UL);
  puts("ready");
  fflush(stdout);
  for (;;) {
    send_due(outer);
    int taken = take(inner, delay_ns), passed = pass(outer, inner);
    if (taken + passed == 0) wait_for_frames(inner, outer);
  }
}
