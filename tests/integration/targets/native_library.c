/* native_library: what native_target loads: calls back from two functions of its own. */
int library_entry(void (*back)(void));

static volatile int count;

__attribute__((noinline, noclone)) static int library_inner(void (*back)(void))
{
    back();
    return ++count;
}

int library_entry(void (*back)(void))
{
    return library_inner(back) + count;
}
