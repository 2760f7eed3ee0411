/* diagnosis_print: a diagnosis (diagnose/diagnose.h) for people and programs. */
#pragma once

#include "diagnose/diagnose.h"
#include "diagnose/headline.h"

#include <stdio.h>

void pb_diagnosis_print(const struct pb_diagnosis *d);
void pb_diagnosis_print_json(const struct pb_diagnosis *d);
/* Writes the diagnosis of one job as a JSON object. */
void pb_diagnosis_write_job(FILE *to, const struct pb_diag_answer *a);
/* The jobs of this machine, a line each, and the commands to go on with. */
void pb_diagnosis_print_jobs(const struct pb_diagnosis *d);
/* The sentence of each job, and the command that has the evidence: for other commands. Nothing where nothing
 * was found. Returns whether something was. */
bool pb_headlines_print(const struct pb_headlines *h, const char *target);
void pb_headline_print(const struct pb_headline *h);
