/* since: rules over what was recorded in the last seconds only. */
#pragma once

struct pb_diag_rules;

/* Has each rule with "-- needs: TABLES" see only the newest rows of these tables. -ENOMEM. */
int pb_diag_rules_since(struct pb_diag_rules *rules, double seconds);
