/* profile_screen: see profile_screen.h. */
#include "cli/profile/profile_screen.h"

#include "cli/print/terminal.h"
#include "print/glyph.h"
#include "print/outlet.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[?25h\033[?1049l"

int pb_screen_open(void)
{
    return pb_terminal_take(STDIN_FILENO, STDOUT_FILENO, PB_TERMINAL_KEYS, ENTER, LEAVE);
}

void pb_screen_close(void)
{
    pb_terminal_give_back();
}

void pb_screen_size(int *ret_rows, int *ret_columns)
{
    pb_terminal_size(STDOUT_FILENO, ret_rows, ret_columns);
}

/* How many bytes of a line fill `columns` columns; escape sequences take no column. */
static size_t bytes_in_columns(const char *line, size_t len, int columns)
{
    struct pb_glyph g;
    size_t i = 0;

    for (int used = 0; i < len;) {
        size_t own = pb_escape_length(line + i, len - i);
        if (own) {
            i += own;
            continue;
        }
        pb_glyph_read(line + i, len - i, &g);
        used += (int)g.columns;
        if (used > columns)
            break;
        i += g.bytes;
    }
    return i;
}

void pb_screen_show(const char *text)
{
    int rows, columns;

    pb_screen_size(&rows, &columns);
    printf("%s[H", pb_escape());
    for (int row = 0; row < rows && *text; row++) {
        size_t len = strcspn(text, "\n");
        fwrite(text, 1, bytes_in_columns(text, len, columns), stdout);
        printf("%s%s[K%s", pb_style(PB_PLAIN), pb_escape(), row + 1 < rows ? "\n" : "");
        text += len + (text[len] == '\n');
    }
    printf("%s[J", pb_escape());
    fflush(stdout);
}

int pb_screen_key(void)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char key;

    return poll(&in, 1, 0) > 0 && read(STDIN_FILENO, &key, 1) == 1 ? (unsigned char)key : 0;
}
