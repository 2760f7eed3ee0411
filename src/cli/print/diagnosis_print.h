/* diagnosis_print: a diagnosis (diagnose/diagnose.h) for people and programs. */
#pragma once

#include "diagnose/diagnose.h"

void pb_diagnosis_print(const struct pb_diagnosis *d);
void pb_diagnosis_print_json(const struct pb_diagnosis *d);
