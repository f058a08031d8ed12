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

/*TABLES*/

static struct report { uint32_t state; int32_t signal; uint64_t pc; uint8_t results[4096]; } *report;
static uint8_t signal_stack[65536];

static void fail(const char *what) { perror(what); exit(1); }

static void note_signal(int signal, siginfo_t *info, void *context) {
    (void)info;
    report->signal = signal;
    report->pc = ((ucontext_t *)context)->uc_mcontext.pc;
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
        run->entry(run->arguments, report->results);
        report->state = 1;
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (report->state == 1) print_bytes("returned", report->results, run->result_bytes);
    else if (report->state == 2) printf("signal %d %llx\n", report->signal, (unsigned long long)report->pc);
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) printf("timeout\n");
    else printf("lost %x\n", status);
    for (uint64_t i = 0; i < run->buffer_count; i++)
        print_bytes("memory", (const uint8_t *)run->buffers[i].pages, run->buffers[i].length);
    munmap((void *)run->base, run->length);
}

int main(void) {
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) fail("mmap");
    for (size_t i = 0; i < function_count; i++) printf("function %llx\n", (unsigned long long)functions[i]);
    for (size_t i = 0; i < run_count; i++) run_one(&runs[i]);
    return 0;
}
