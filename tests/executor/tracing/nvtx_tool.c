/* A stand-in for an NVTX tool: NVTX_INJECTION64_PATH names it, and it writes a line for each push and pop of a domain
 * to the file that NVTX_TOOL_LOG names. No CUDA, no nsys and no NVTX header is needed: the tables below are NVTX's binary
 * interface, which has been the same since its version 3.
 *
 *     push <thread> <domain> <category> <payload type> <payload> <message>
 *     pop <thread> <domain>
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct attributes { /* nvtxEventAttributes_v2 */
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type; /* 1: char, 2: wchar_t, 3: registered */
    const char *message;
};
_Static_assert(sizeof(struct attributes) == 48, "nvtxEventAttributes_v2 is 48 bytes");

typedef void (*function)(void);
struct callbacks {
    size_t size;
    int (*get_module)(int module, function ***table, unsigned *size);
};
enum { CALLBACKS = 1, CORE2 = 5 };
enum { PUSH = 4, POP = 5, NAME_CATEGORY = 8, REGISTER = 10, CREATE = 12 };

struct domain {
    char *name;
    char *categories[64]; /* names that the program gave, by number */
};

static FILE *out;

static long thread(void) { return syscall(SYS_gettid); }

static int push(struct domain *domain, const struct attributes *event) {
    const char *category = event->category < 64 && domain->categories[event->category] ? domain->categories[event->category] : "-";
    const char *message = event->message_type == 2 || !event->message ? "?" : event->message;
    fprintf(out, "push %ld %s %s %d %llu %s\n", thread(), domain->name, category, (int)event->payload_type,
            (unsigned long long)event->payload, message);
    return 0;
}

static int pop(struct domain *domain) {
    fprintf(out, "pop %ld %s\n", thread(), domain->name);
    return 0;
}

static void name_category(struct domain *domain, uint32_t number, const char *name) {
    if (number < 64) domain->categories[number] = strdup(name);
}

static const char *register_text(struct domain *domain, const char *text) {
    (void)domain;
    return strdup(text);
}

static struct domain *create(const char *name) {
    struct domain *made = calloc(1, sizeof *made);
    made->name = strdup(name);
    return made;
}

static void put(function **table, unsigned size, unsigned place, function call) {
    if (place < size && table[place]) *table[place] = call;
}

int InitializeInjectionNvtx2(const void *(*get_table)(uint32_t)) {
    const struct callbacks *callbacks = get_table(CALLBACKS);
    const char *path = getenv("NVTX_TOOL_LOG");
    function **table;
    unsigned size;
    if (!callbacks || !path || !(out = fopen(path, "w"))) return 0;
    if (!callbacks->get_module(CORE2, &table, &size)) return 0;
    put(table, size, PUSH, (function)push);
    put(table, size, POP, (function)pop);
    put(table, size, NAME_CATEGORY, (function)name_category);
    put(table, size, REGISTER, (function)register_text);
    put(table, size, CREATE, (function)create);
    return 1;
}
