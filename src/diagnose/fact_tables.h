/* fact_tables: facts as tables for rules, in SQL. */
#pragma once

#include "diagnose/facts.h"

#include <stdio.h>

/* Writes "WITH ends AS (..), threads AS (..), ranks AS (..), job AS (..) " with the facts as values. */
void pb_diag_put_tables(FILE *out, const struct pb_diag_job *job);
