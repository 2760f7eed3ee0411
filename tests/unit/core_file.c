/* Core files made by hand: what each of them says, and what is refused. */
#include <elf.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "remote/core.h"
#include "remote/maps.h"
#include "remote/moment.h"
#include "remote/native/unwind.h"
#include "remote/native/unwind_arch.h"
#include "remote/source.h"
#include "remote/threads.h"

#include "test.h"

/* A header, a note segment and one segment of memory, laid out one after the other. */
struct image {
    Elf64_Ehdr eh;
    Elf64_Phdr ph[3];
    unsigned char notes[2048];
    size_t notes_len;
    unsigned char memory[4096];
};

static void add_note(struct image *m, uint32_t type, const void *desc, size_t size)
{
    Elf64_Nhdr h = {5, (uint32_t)size, type};
    unsigned char *at = m->notes + m->notes_len;

    memcpy(at, &h, sizeof(h));
    memcpy(at + sizeof(h), "CORE\0\0\0", 8);
    memcpy(at + sizeof(h) + 8, desc, size);
    m->notes_len += sizeof(h) + 8 + ((size + 3) & ~(size_t)3);
}

/* A thread whose registers are its tid, plus their place in the kernel's order. */
static void add_thread(struct image *m, int32_t tid, int16_t signal, uint16_t machine)
{
    unsigned char desc[392] = {0};
    size_t n = machine == EM_X86_64 ? 27 : 34;

    memcpy(desc + 12, &signal, sizeof(signal));
    memcpy(desc + 32, &tid, sizeof(tid));
    for (size_t i = 0; i < n; i++) {
        uint64_t value = (uint64_t)tid * 1000 + i;
        if (machine == EM_X86_64 && i == 15)
            value = tid == 7 ? UINT64_MAX : 202; /* the second waits in a system call */
        memcpy(desc + 112 + i * 8, &value, sizeof(value));
    }
    add_note(m, NT_PRSTATUS, desc, machine == EM_X86_64 ? 336 : 392);
}

static void add_rest(struct image *m)
{
    unsigned char info[136] = {0}, sig[128] = {0};
    int32_t pid = 7, number = SIGSEGV, code = SEGV_MAPERR;
    uint64_t address = 0xdead0;

    memcpy(info + 24, &pid, sizeof(pid));
    memcpy(info + 40, "worker", 7);
    memcpy(info + 56, "worker --fast  ", 16);
    add_note(m, NT_PRPSINFO, info, sizeof(info));
    memcpy(sig, &number, sizeof(number));
    memcpy(sig + 8, &code, sizeof(code));
    memcpy(sig + 16, &address, sizeof(address));
    add_note(m, NT_SIGINFO, sig, sizeof(sig));
    struct {
        uint64_t count, page, start, end, offset;
        char path[24];
    } files = {1, 4096, 0x400000, 0x402000, 3, "/nowhere/at-all"};
    add_note(m, NT_FILE, &files, sizeof(files));
}

static void make(struct image *m, uint16_t machine)
{
    *m = (struct image){0};
    memcpy(m->eh.e_ident, ELFMAG, SELFMAG);
    m->eh.e_ident[EI_CLASS] = ELFCLASS64;
    m->eh.e_ident[EI_DATA] = ELFDATA2LSB;
    m->eh.e_type = ET_CORE;
    m->eh.e_machine = machine;
    m->eh.e_phoff = offsetof(struct image, ph);
    m->eh.e_phentsize = sizeof(Elf64_Phdr);
    m->eh.e_phnum = 3;
    add_thread(m, 7, SIGSEGV, machine);
    add_rest(m);
    add_thread(m, 9, SIGSEGV, machine);
    m->ph[0] =
        (Elf64_Phdr){.p_type = PT_NOTE, .p_offset = offsetof(struct image, notes), .p_filesz = m->notes_len};
    m->ph[1] = (Elf64_Phdr){.p_type = PT_LOAD,
                            .p_flags = PF_R | PF_W,
                            .p_offset = offsetof(struct image, memory),
                            .p_vaddr = 0x10000,
                            .p_filesz = 4096,
                            .p_memsz = 8192};
    m->ph[2] = (Elf64_Phdr){
        .p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = 0, .p_vaddr = 0x400000, .p_memsz = 8192};
    memset(m->memory, 'm', sizeof(m->memory));
}

static int open_bytes(const void *data, size_t size, struct pb_source *ret, struct pb_err *err)
{
    int fd = memfd_create("core", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), size);
    return pb_core_open_fd(fd, "the core", NULL, ret, err);
}

static void tells_threads_signal_and_command(void **state)
{
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    struct image m;
    struct pb_moment moment;

    make(&m, EM_X86_64);
    assert_int_equal(open_bytes(&m, sizeof(m), &s, NULL), 0);
    const struct pb_core_info *info = pb_core_info(&s);
    assert_int_equal(info->pid, 7);
    assert_string_equal(info->name, "worker");
    assert_string_equal(info->command, "worker --fast");
    assert_int_equal(info->signal, SIGSEGV);
    assert_int_equal(info->died_in, 7);
    assert_int_equal(info->address, 0xdead0);
    assert_int_equal(pb_source_threads(&s, &threads, NULL), 0);
    assert_int_equal(threads.n, 2);
    assert_int_equal(threads.at[0].signal, SIGSEGV);
    assert_int_equal(threads.at[1].signal, 0);
    assert_int_equal(pb_source_moment(&s, 9, &moment), 0);
    assert_int_equal(pb_moment_begin(&moment, 0), PB_WAY_DEAD);
    /* The number means another call on another machine: there it is not told. */
    assert_int_equal(moment.syscall, pb_native_arch(0)->machine == EM_X86_64 ? 202 : -1);
    assert_int_equal(moment.syscall_args[0], 9014);
    assert_int_equal(pb_source_moment(&s, 7, &moment), 0);
    assert_int_equal(moment.syscall, -1);
    assert_int_equal(pb_source_moment(&s, 8, &moment), -ESRCH);
}

/* The kernel has forgotten the call by then: x8 has its number, where the thread stands on svc. */
static void a_thread_of_an_aarch64_core_that_stands_on_svc_waits(void **state)
{
    enum { PRSTATUS_PC = 112 + 32 * 8, PRSTATUS_X8 = 112 + 8 * 8 };
    const uint32_t svc = 0xd4000001;
    const uint64_t at = 0x10010, number = 98;
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    struct image m;

    make(&m, EM_AARCH64);
    for (int32_t tid = 7; tid <= 9; tid += 2) {
        unsigned char *desc = NULL;
        for (size_t i = 20; i + 36 < m.notes_len && !desc; i += 4)
            if (memcmp(m.notes + i + 32, &tid, sizeof(tid)) == 0 && memcmp(m.notes + i - 8, "CORE", 4) == 0)
                desc = m.notes + i;
        assert_non_null(desc);
        memcpy(desc + PRSTATUS_X8, &number, sizeof(number));
        memcpy(desc + PRSTATUS_PC, tid == 9 ? &at : (uint64_t[]){at + 64}, sizeof(at));
    }
    memcpy(m.memory + 0x10, &svc, sizeof(svc));
    assert_int_equal(open_bytes(&m, sizeof(m), &s, NULL), 0);
    assert_int_equal(pb_source_threads(&s, &threads, NULL), 0);
    assert_int_equal(threads.at[0].state, 'R');
    assert_int_equal(threads.at[1].state, 'S');
}

static void gives_registers_by_their_dwarf_numbers(void **state)
{
    static const struct {
        uint16_t machine;
        unsigned sp, pc, fp;
        uint64_t is_sp, is_pc, is_fp;
    } cases[] = {{EM_X86_64, 7, 16, 6, 19, 16, 4}, {EM_AARCH64, 31, 32, 29, 31, 32, 29}};

    for (size_t i = 0; i < 2; i++) {
        _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
        struct pb_capture c = {0};
        struct image m;
        make(&m, cases[i].machine);
        assert_int_equal(open_bytes(&m, sizeof(m), &s, NULL), 0);
        assert_int_equal(s.machine, cases[i].machine);
        assert_int_equal(s.ops->registers(&s, 9, &c), 0);
        assert_int_equal(c.sp, 9000 + cases[i].is_sp);
        assert_int_equal(c.pc, 9000 + cases[i].is_pc);
        assert_int_equal(c.reg[cases[i].fp], 9000 + cases[i].is_fp);
    }
}

static void reads_what_was_dumped_and_nothing_else(void **state)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    struct image m;
    char buf[64];

    make(&m, EM_X86_64);
    assert_int_equal(open_bytes(&m, sizeof(m), &s, NULL), 0);
    assert_int_equal(pb_source_read(&s, 0x10000 + 4096 - 64, buf, 64), 0);
    assert_int_equal(buf[63], 'm');
    assert_int_equal(pb_source_read(&s, 0x10000 + 4096 - 63, buf, 64), -EFAULT);
    assert_int_equal(pb_source_read_some(&s, 0x10000 + 4096 - 10, buf, 64), 10);
    assert_int_equal(pb_source_read(&s, 0x20000, buf, 1), -EFAULT);
    assert_int_equal(pb_core_info(&s)->nnotes, 0);
    assert_int_equal(pb_source_maps(&s, &maps, NULL), 0);
    assert_int_equal(maps.n, 2);
    assert_string_equal(maps.at[1].path, "/nowhere/at-all");
    assert_int_equal(maps.at[1].offset, 3 * 4096);
    assert_int_equal(maps.at[1].prot, PROT_READ | PROT_EXEC);
    /* Its file is not there: a note says so, once. */
    assert_int_equal(pb_source_read(&s, 0x400000, buf, 1), -EFAULT);
    assert_int_equal(pb_source_read(&s, 0x400000, buf, 1), -EFAULT);
    assert_int_equal(pb_core_info(&s)->nnotes, 1);
    assert_non_null(strstr(pb_core_info(&s)->notes[0], "/nowhere/at-all"));
}

static void what_is_cut_off_is_missing_not_wrong(void **state)
{
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    struct image m;
    struct pb_err err = {""};
    char buf[8];

    make(&m, EM_X86_64);
    assert_int_equal(open_bytes(&m, offsetof(struct image, memory) + 100, &s, NULL), 0);
    assert_int_equal(pb_source_read(&s, 0x10000 + 92, buf, 8), 0);
    assert_int_equal(pb_source_read(&s, 0x10000 + 93, buf, 8), -EFAULT);
    assert_non_null(strstr(pb_core_info(&s)->notes[0], "3996 of its bytes are missing"));
    pb_source_close(&s);
    assert_int_equal(open_bytes(&m, offsetof(struct image, notes) + 100, &s, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "ends within its notes"));
    assert_int_equal(open_bytes(&m, 100, &s, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "cut short"));
}

static void says_what_a_file_is_that_is_no_core(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *says;
    } cases[] = {
        {"", 0, "is empty"},
        {"hello, world", 12, "is no core file"},
        {"\x1f\x8b\x08\0\0\0\0\0", 8, "packed with gzip"},
        {"\x28\xb5\x2f\xfd\0\0\0\0", 8, "packed with zstd"},
        {"\x7f"
         "ELF\x01\x01\x01",
         7, "ends within its header"},
    };
    struct pb_source s;
    struct pb_err err;
    struct image m;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(open_bytes(cases[i].bytes, cases[i].len, &s, &err) < 0);
        assert_non_null(strstr(err.text, cases[i].says));
    }
    make(&m, EM_X86_64);
    m.eh.e_type = ET_EXEC;
    assert_int_equal(open_bytes(&m, sizeof(m), &s, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "not a core file"));
    make(&m, EM_PPC64);
    assert_int_equal(open_bytes(&m, sizeof(m), &s, &err), -ENOTSUP);
    make(&m, EM_X86_64);
    m.eh.e_ident[EI_CLASS] = ELFCLASS32;
    assert_int_equal(open_bytes(&m, sizeof(m), &s, &err), -ENOTSUP);
    make(&m, EM_X86_64);
    m.ph[0].p_type = PT_NULL;
    assert_int_equal(open_bytes(&m, sizeof(m), &s, &err), -ENOEXEC);
    assert_non_null(strstr(err.text, "no threads"));
}

/* As many headers as there can be, all of the same notes: they are not read for ever. */
static void notes_are_bounded_however_often_they_are_named(void **state)
{
    enum { HEADERS = 65000, EMPTY = 100 };
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};
    _cleanup_(pb_source_close) struct pb_source s = {.fd = -1};
    struct image m;

    make(&m, EM_X86_64);
    m.notes_len = EMPTY * sizeof(Elf64_Nhdr);
    memset(m.notes, 0, m.notes_len);
    add_thread(&m, 7, SIGSEGV, EM_X86_64);
    m.eh.e_phoff = sizeof(m);
    m.eh.e_phnum = HEADERS;
    m.ph[0].p_filesz = m.notes_len;
    size_t size = sizeof(m) + HEADERS * sizeof(m.ph[0]);
    _cleanup_free_ unsigned char *file = malloc(size);
    assert_non_null(file);
    memcpy(file, &m, sizeof(m));
    for (size_t i = 0; i < HEADERS; i++)
        memcpy(file + sizeof(m) + i * sizeof(m.ph[0]), &m.ph[0], sizeof(m.ph[0]));
    assert_int_equal(open_bytes(file, size, &s, NULL), 0);
    assert_int_equal(pb_source_threads(&s, &threads, NULL), 0);
    assert_in_range(threads.n, 1, 20000);
}

static void survives_damage(void **state)
{
    struct image m;

    srand(1);
    for (int round = 0; round < 5000; round++) {
        struct pb_source s;
        struct pb_maps maps;
        char buf[64];
        make(&m, EM_X86_64);
        for (int hit = 0; hit < 1 + round % 8; hit++)
            ((unsigned char *)&m)[(size_t)rand() % offsetof(struct image, memory)] = (unsigned char)rand();
        if (open_bytes(&m, sizeof(m), &s, NULL) < 0)
            continue;
        if (pb_source_maps(&s, &maps, NULL) == 0) {
            for (size_t i = 0; i < maps.n; i++)
                pb_source_read_some(&s, maps.at[i].end - 32, buf, sizeof(buf));
            pb_maps_done(&maps);
        }
        pb_source_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_threads_signal_and_command),
        cmocka_unit_test(a_thread_of_an_aarch64_core_that_stands_on_svc_waits),
        cmocka_unit_test(gives_registers_by_their_dwarf_numbers),
        cmocka_unit_test(reads_what_was_dumped_and_nothing_else),
        cmocka_unit_test(what_is_cut_off_is_missing_not_wrong),
        cmocka_unit_test(says_what_a_file_is_that_is_no_core),
        cmocka_unit_test(notes_are_bounded_however_often_they_are_named),
        cmocka_unit_test(survives_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
