/* The prompt's editor on a pseudo-terminal: keys go in, and what it gives back is what they mean. */
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>

#include "base/cleanup.h"
#include "cli/line/line_edit.h"
#include "cli/line/line_history.h"
#include "print/glyph.h"

#include "test.h"

#define UP    "\033[A"
#define DOWN  "\033[B"
#define RIGHT "\033[C"
#define LEFT  "\033[D"

static bool ends_with_semicolon(void *arg, const char *text, size_t length)
{
    return length && text[length - 1] == ';';
}

static size_t complete_fruit(void *arg, const char *text, size_t cursor, struct pb_line_words *to)
{
    static const char *const fruit[] = {"apple", "apricot", "banana"};
    size_t from = cursor;

    while (from > 0 && text[from - 1] != ' ')
        from--;
    for (size_t i = 0; i < 3; i++)
        if (strncmp(fruit[i], text + from, cursor - from) == 0)
            pb_line_offer(to, fruit[i]);
    return from;
}

static const struct pb_line_hooks hooks = {.is_whole = ends_with_semicolon, .complete = complete_fruit};

struct person {
    pid_t shell;
    int terminal, answers;
    char seen[1 << 16];
    size_t nseen;
};

/* A process that asks at a prompt until it is told no more, and says what it was told, a NUL behind each. */
static void ask_on(int answers, const char *history)
{
    struct pb_line *l;
    char *text;

    setenv("TERM", "xterm", 1);
    signal(SIGSEGV, SIG_DFL); /* the tests' own handler otherwise */
    if (pb_line_open(0, 1, &hooks, history, &l) < 0)
        _exit(3);
    while (pb_line_read(l, "> ", ". ", &text) == 0) {
        (void)!write(answers, text, strlen(text) + 1);
        free(text);
    }
    pb_line_close(l);
    _exit(0);
}

/* What a shell does, for one program: it says when that stops or ends, and whether the terminal is as it was.
 */
static void be_a_shell(int answers, const char *history)
{
    struct termios t;
    char text[64];
    int status;

    signal(SIGTTOU, SIG_IGN);
    pid_t pid = fork();
    setpgid(pid, pid);
    tcsetpgrp(0, pid ? pid : getpid());
    if (pid == 0)
        ask_on(answers, history);
    while (waitpid(pid, &status, WUNTRACED) == pid) {
        bool back = tcgetattr(0, &t) == 0 && (t.c_lflag & (ICANON | ECHO | ISIG)) == (ICANON | ECHO | ISIG) &&
                    t.c_iflag & ICRNL;
        int n = snprintf(text, sizeof(text), "(%s %d, %s)", WIFSTOPPED(status) ? "stopped" : "ended",
                         WIFSIGNALED(status) ? WTERMSIG(status) : 0, back ? "given back" : "kept");
        (void)!write(answers, text, (size_t)n + 1);
        if (!WIFSTOPPED(status))
            _exit(0);
        kill(pid, SIGCONT);
    }
    _exit(1);
}

static struct person begin(const char *history, unsigned short rows, unsigned short columns)
{
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    struct person p = {.nseen = 0};
    int answers[2];

    assert_int_equal(pipe(answers), 0);
    p.shell = forkpty(&p.terminal, NULL, NULL, &size);
    assert_true(p.shell >= 0);
    if (p.shell == 0)
        be_a_shell(answers[1], history);
    close(answers[1]);
    p.answers = answers[0];
    return p;
}

/* Reads what the terminal shows, for so long; false once it is gone. */
static bool look(struct person *p, int ms)
{
    struct pollfd in = {.fd = p->terminal, .events = POLLIN};

    while (poll(&in, 1, ms) > 0) {
        if (p->nseen > sizeof(p->seen) / 2)
            p->nseen = 0;
        ssize_t n = read(p->terminal, p->seen + p->nseen, sizeof(p->seen) - p->nseen - 1);
        if (n <= 0)
            return false;
        p->nseen += (size_t)n;
        p->seen[p->nseen] = '\0';
        ms = 0;
    }
    return true;
}

static void wait_for_prompt(struct person *p)
{
    for (int i = 0; i < 500 && !strstr(p->seen, "> "); i++)
        look(p, 10);
    assert_non_null(strstr(p->seen, "> "));
}

static void press(struct person *p, const char *keys)
{
    size_t n = strlen(keys);
    struct termios t;

    /* Until the prompt has the terminal, keys such as Ctrl-D are the terminal's own. */
    for (int i = 0; i < 500 && tcgetattr(p->terminal, &t) == 0 && t.c_lflag & ICANON; i++)
        look(p, 10);
    assert_int_equal(write(p->terminal, keys, n), (ssize_t)n);
}

/* The next text that the prompt gave, which lives until the next call. */
static const char *answer(struct person *p)
{
    static char text[4096];
    size_t n = 0;

    for (int i = 0; i < 1000; i++) {
        struct pollfd in = {.fd = p->answers, .events = POLLIN};
        look(p, 0);
        if (poll(&in, 1, 5) <= 0)
            continue;
        if (read(p->answers, &text[n], 1) != 1)
            return "(it ended)";
        if (text[n++] == '\0')
            return text;
    }
    return "(nothing)";
}

/* Ctrl-D, or a signal before; it must end and leave everything as it was. */
static void end(struct person *p, int number)
{
    char text[64];

    if (number == 0)
        press(p, "\004");
    else
        kill(-tcgetpgrp(p->terminal), number);
    snprintf(text, sizeof(text), "(ended %d, given back)", number);
    assert_string_equal(answer(p), text);
    close(p->terminal);
    close(p->answers);
    waitpid(p->shell, NULL, 0);
}

static const struct {
    const char *keys, *text;
} edits[] = {
    {"abc;\r", "abc;"},
    {"bc" LEFT LEFT "a\005;\r", "abc;"},
    {"abXc" LEFT "\010\005;\r", "abc;"},
    {"abXc" LEFT LEFT "\033[3~\005;\r", "abc;"},
    {"one two three\027\027\002four\005;\r", "onefour ;"},
    {"one two\033b\033bX\005;\r", "Xone two;"},
    {"one two\001\033fX\005;\r", "oneX two;"},
    {"one two\033[1;5DX\005;\r", "one Xtwo;"},
    {"one two\001\013\031;\r", "one two;"},
    {"gone\025kept;\r", "kept;"},
    {"one\033\177two;\r", "two;"},
    {"ba\024;\r", "ab;"},
    {"gone\003kept;\r", "kept;"},
    {"one\rtwo;\r", "one\ntwo;"},
    {"one\rtwo" UP "X" DOWN "Y\005;\r", "oneX\ntwoY;"},
    {"one;\033\rtwo;\r", "one;\ntwo;"},
    {"\xc3\xa9\xe4\xb8\xad" LEFT "\010a\005;\r", "a\xe4\xb8\xad;"},
    {"e\xcc\x81x" LEFT LEFT "\033[3~;\005;\r", ";x;"},
    {"\033[200~a;\r\nb\tc\033[31m;\033[201~\r", "a;\nb\tc[31m;"},
    {"ban\t;\r", "banana ;"},
    {"ap\tr\t;\r", "apricot ;"},
    {"a\033[5;9zb\033Oq;\r", "ab;"},
};

static void keys_do_what_they_do_elsewhere(void **state)
{
    static struct person p;

    p = begin(NULL, 24, 80);
    wait_for_prompt(&p);
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        press(&p, edits[i].keys);
        const char *text = answer(&p);
        if (strcmp(text, edits[i].text) != 0)
            print_error("edit %zu\n", i);
        assert_string_equal(text, edits[i].text);
    }
    end(&p, 0);
}

static void what_was_entered_is_found_again(void **state)
{
    char path[] = "/tmp/probing-history-XXXXXX";
    static struct person p;
    struct stat st;

    int fd = mkstemp(path);
    close(fd);
    assert_int_equal(unlink(path), 0);
    p = begin(path, 24, 80);
    wait_for_prompt(&p);
    press(&p, "first;\r");
    answer(&p);
    press(&p, "two\r\\lines;\r");
    answer(&p);
    press(&p, UP UP UP "\005X;\r");
    assert_string_equal(answer(&p), "first;X;");
    press(&p, "draft" UP DOWN ";\r");
    assert_string_equal(answer(&p), "draft;");
    press(&p, "\022irst;\r");
    assert_string_equal(answer(&p), "first;X;");
    press(&p, "\022irst;\022\r");
    assert_string_equal(answer(&p), "first;");
    press(&p, "kept\022first\007;\r");
    assert_string_equal(answer(&p), "kept;");
    end(&p, 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);

    p = begin(path, 24, 80);
    wait_for_prompt(&p);
    press(&p, "\022lines\r");
    assert_string_equal(answer(&p), "two\n\\lines;");
    end(&p, 0);
    unlink(path);
}

static void a_history_is_bounded(void **state)
{
    char path[] = "/tmp/probing-history-XXXXXX", text[32];
    struct pb_line_history h;
    struct stat st;

    close(mkstemp(path));
    FILE *file = fopen(path, "w");
    for (unsigned i = 0; i < 3 * PB_HISTORY_MAX; i++)
        fprintf(file, "entry %u\n", i);
    fclose(file);
    assert_int_equal(pb_line_history_open(path, &h), 0);
    assert_int_equal(h.n, PB_HISTORY_MAX);
    snprintf(text, sizeof(text), "entry %u", 3 * PB_HISTORY_MAX - 1);
    assert_string_equal(h.at[h.n - 1], text);
    pb_line_history_done(&h);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < 12 * (off_t)PB_HISTORY_MAX);
    unlink(path);

    /* What is no plain file of ours is as none. */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pb_line_history_open(path, &h), 0);
    assert_int_equal(h.n, 0);
    pb_line_history_done(&h);
    unlink(path);
}

static void the_terminal_is_given_back_however_it_ends(void **state)
{
    static const int signals[] = {SIGTERM, SIGHUP, SIGSEGV, SIGINT};
    static struct person p;

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        p = begin(NULL, 24, 80);
        wait_for_prompt(&p);
        end(&p, signals[i]);
    }
}

static void suspended_it_leaves_the_terminal_to_the_shell(void **state)
{
    static struct person p;

    p = begin(NULL, 24, 80);
    wait_for_prompt(&p);
    press(&p, "half\032");
    assert_string_equal(answer(&p), "(stopped 0, given back)");
    press(&p, " whole;\r");
    assert_string_equal(answer(&p), "half whole;");
    /* From elsewhere too. */
    kill(-tcgetpgrp(p.terminal), SIGTSTP);
    assert_string_equal(answer(&p), "(stopped 0, given back)");
    press(&p, "again;\r");
    assert_string_equal(answer(&p), "again;");
    end(&p, 0);
}

static void a_text_larger_than_the_screen_and_a_resize_do_no_harm(void **state)
{
    static struct person p;
    char expected[1024] = "";

    p = begin(NULL, 5, 20);
    wait_for_prompt(&p);
    for (int i = 0; i < 30; i++) {
        press(&p, "0123456789\xe4\xb8\xad\xe6\x96\x87 wide\r");
        strcat(expected, "0123456789\xe4\xb8\xad\xe6\x96\x87 wide\n");
        look(&p, 1);
        if (i % 7 == 0)
            ioctl(p.terminal, TIOCSWINSZ, &(struct winsize){.ws_row = 3, .ws_col = (unsigned short)(1 + i)});
    }
    press(&p, ";\r");
    strcat(expected, ";");
    assert_string_equal(answer(&p), expected);
    end(&p, 0);
}

static void a_terminal_gets_no_commands_from_text(void **state)
{
    static const struct {
        const char *text, *shown;
        unsigned columns;
    } glyphs[] = {
        {"a", "a", 1},
        {"\033", "\\x1b", 4},
        {"\n", "\\n", 2},
        {"\x7f", "\\x7f", 4},
        {"\xc2\x9b", "\\x9b", 4},
        {"\xff", "\\xff", 4},
        {"\xe2\x80\xae", "\\u202e", 6},
        {"\xe4\xb8\xad", "\xe4\xb8\xad", 2},
        {"\xcc\x81", "\xcc\x81", 0},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80", 2},
        {"\xe2\x80", "\\xe2", 4},
    };
    struct pb_glyph g;

    for (size_t i = 0; i < sizeof(glyphs) / sizeof(glyphs[0]); i++) {
        pb_glyph_read(glyphs[i].text, strlen(glyphs[i].text), &g);
        assert_string_equal(g.shown, glyphs[i].shown);
        assert_int_equal(g.columns, glyphs[i].columns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_do_what_they_do_elsewhere),
        cmocka_unit_test(what_was_entered_is_found_again),
        cmocka_unit_test(a_history_is_bounded),
        cmocka_unit_test(the_terminal_is_given_back_however_it_ends),
        cmocka_unit_test(suspended_it_leaves_the_terminal_to_the_shell),
        cmocka_unit_test(a_text_larger_than_the_screen_and_a_resize_do_no_harm),
        cmocka_unit_test(a_terminal_gets_no_commands_from_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
