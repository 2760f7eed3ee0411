/* big_tls, to be preloaded: 220 KB of static thread-local storage, which the stack of every thread has to
 * hold. */
__attribute__((tls_model("initial-exec"))) __thread char big_tls[220 * 1024];

char *touch_big_tls(void);
char *touch_big_tls(void)
{
    return big_tls;
}
