/* webhook: posts a finding to an address (probing.alert.webhook), by curl, which has the certificates of this
 * machine. One document that Slack, Feishu and receivers of Alertmanager's take alike. */
#pragma once

#include "base/err.h"
#include "diagnose/standing.h"

/* address: NULL where there is none, which is fine. -EINVAL: it is no address; -ENOENT: curl is not
 * installed. */
int pb_webhook_check(const char *address, struct pb_err *err);

/* Starts the post and does not wait for it. It is tried four times within a minute. The lines of source code
 * are left out: they may hold a secret. */
int pb_webhook_post(const char *address, const struct pb_diag_event *e, struct pb_err *err);
