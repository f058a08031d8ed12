/* Runs compiled functions on given memory and reports how each run ended. The tables between the two
   markers are generated. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

struct patch { uint32_t offset; uint8_t byte; };
struct buffer { uint64_t pages, length; const struct patch *patches; uint64_t patch_count; };
struct run {
    void (*entry)(const void *, void *);
    const uint8_t *arguments;
    uint64_t result_bytes;
    uint64_t base, length;
    const struct buffer *buffers;
    uint64_t buffer_count;
};

void host_touch(uint8_t *at) { *(volatile uint8_t *)at += 1; }
void host_nop(void) {}
uint64_t host_read(const void *at) { uint64_t value; memcpy(&value, at, 8); return value; }

/* A call with exception handlers or a stack map; addresses count from the start of the function. */
struct handler { uint32_t tag; int any; uint64_t address; };
struct site {
    uint64_t function, address, frame_bytes;
    const struct handler *handlers;
    uint64_t handler_count;
    const uint64_t *mapped;
    uint64_t mapped_count;
};

/*TABLES*/

/* The state is 1 if the run returned, 2 if a signal stopped it at an address, 3 if it threw a tag with
   a payload. */
static struct report { uint32_t state; uint32_t number; uint64_t word; uint8_t results[4096]; } *report;
static uint8_t signal_stack[65536];
/* The frame from which the code under test is called. */
static uint64_t entry_frame;

/* Both pass on the frame and the return address of their caller. The arguments of the tail convention
   begin at x2. */
__asm__(
    ".global host_throw\n"
    "host_throw: mov x2, x29\n mov x3, x30\n b throw_from\n"
    ".global host_throw_tail\n"
    "host_throw_tail: mov x0, x2\n mov x1, x3\n b host_throw\n"
    ".global host_collect\n"
    "host_collect: mov x0, x29\n mov x1, x30\n b collect_from\n");

static const struct site *site_at(uint64_t address) {
    for (size_t i = 0; i < site_count; i++)
        if (functions[sites[i].function] + sites[i].address == address) return &sites[i];
    return NULL;
}

static const struct handler *handler_of(const struct site *site, uint32_t tag) {
    const struct handler *found = NULL;
    for (uint64_t i = 0; i < site->handler_count; i++) {
        const struct handler *handler = &site->handlers[i];
        if (!handler->any && handler->tag == tag) return handler;
        if (handler->any && !found) found = handler;
    }
    return found;
}

/* Goes on at the nearest handler for the tag, or ends the run. */
__attribute__((used)) void throw_from(uint32_t tag, uint64_t payload, uint64_t *frame, uint64_t address) {
    for (; (uint64_t)frame != entry_frame; address = frame[1], frame = (uint64_t *)frame[0]) {
        const struct site *site = site_at(address);
        const struct handler *handler = site ? handler_of(site, tag) : NULL;
        if (!handler) continue;
        register uint64_t x0 __asm__("x0") = payload;
        register uint64_t x1 __asm__("x1") = tag;
        register uint64_t x2 __asm__("x2") = (uint64_t)frame - site->frame_bytes;
        register uint64_t x3 __asm__("x3") = (uint64_t)frame;
        register uint64_t x4 __asm__("x4") = functions[site->function] + handler->address;
        __asm__ volatile("mov sp, x2\n mov x29, x3\n br x4"
                         : : "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
        __builtin_unreachable();
    }
    report->number = tag;
    report->word = payload;
    report->state = 3;
    _exit(0);
}

/* Adds 1 to the first byte of every value that the callers' stack maps name. */
__attribute__((used)) void collect_from(uint64_t *frame, uint64_t address) {
    for (; (uint64_t)frame != entry_frame; address = frame[1], frame = (uint64_t *)frame[0]) {
        const struct site *site = site_at(address);
        for (uint64_t i = 0; site && i < site->mapped_count; i++)
            *(volatile uint8_t *)((uint64_t)frame - site->frame_bytes + site->mapped[i]) += 1;
    }
}

static void fail(const char *what) { perror(what); exit(1); }

static void note_signal(int signal, siginfo_t *info, void *context) {
    (void)info;
    report->number = signal;
    report->word = ((ucontext_t *)context)->uc_mcontext.pc;
    report->state = 2;
    _exit(0);
}

static void install_handlers(void) {
    static const int signals[] = { SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP };
    stack_t stack = { .ss_sp = signal_stack, .ss_size = sizeof signal_stack };
    struct sigaction action = { .sa_flags = SA_SIGINFO | SA_ONSTACK };
    sigaltstack(&stack, NULL);
    action.sa_sigaction = note_signal;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}

static void print_bytes(const char *what, const uint8_t *bytes, uint64_t count) {
    printf("%s ", what);
    for (uint64_t i = 0; i < count; i++) printf("%02x", bytes[i]);
    printf("\n");
}

static void place_buffers(const struct run *run) {
    void *arena = mmap((void *)run->base, run->length, PROT_NONE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (arena != (void *)run->base) fail("mmap of the buffers");
    for (uint64_t i = 0; i < run->buffer_count; i++) {
        const struct buffer *buffer = &run->buffers[i];
        if (buffer->length == 0) continue;
        if (mprotect((void *)buffer->pages, buffer->length, PROT_READ | PROT_WRITE)) fail("mprotect");
        for (uint64_t j = 0; j < buffer->patch_count; j++)
            ((uint8_t *)buffer->pages)[buffer->patches[j].offset] = buffer->patches[j].byte;
    }
}

static void run_one(const struct run *run) {
    place_buffers(run);
    memset(report, 0, sizeof *report);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        install_handlers();
        alarm(RUN_SECONDS_MAX);
        entry_frame = (uint64_t)__builtin_frame_address(0);
        run->entry(run->arguments, report->results);
        report->state = 1;
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (report->state == 1) print_bytes("returned", report->results, run->result_bytes);
    else if (report->state == 2) printf("signal %u %llx\n", report->number, (unsigned long long)report->word);
    else if (report->state == 3) printf("threw %u %llx\n", report->number, (unsigned long long)report->word);
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) printf("timeout\n");
    else printf("lost %x\n", status);
    for (uint64_t i = 0; i < run->buffer_count; i++)
        print_bytes("memory", (const uint8_t *)run->buffers[i].pages, run->buffers[i].length);
    munmap((void *)run->base, run->length);
}

int main(void) {
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) fail("mmap");
    printf("stack %llx\n", (unsigned long long)__builtin_frame_address(0));
    for (size_t i = 0; i < function_count; i++) printf("function %llx\n", (unsigned long long)functions[i]);
    for (size_t i = 0; i < run_count; i++) run_one(&runs[i]);
    return 0;
}
