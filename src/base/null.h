/* null: /dev/null in place of standard streams. Tools only; also in a child of a fork. */
#pragma once

/* Descriptors first to last (0 to 2) become /dev/null, also after an exec. In some containers only root may
 * open it for writing: then they are a descriptor that cannot be read or written. Negative errno: some were
 * not replaced. */
int pb_null_over(int first, int last);
