/* fact_tables: facts as tables for rules, in SQL. */
#pragma once

#include "diagnose/facts.h"

#include <stdio.h>

/* Writes "WITH ends AS (..), threads AS (..) " with the facts as values: the tables that a rule's SELECT
 * names, since the worker would read the others too, for each rule again. */
void pb_diag_put_tables(FILE *out, const struct pb_diag_job *job, const char *select);
