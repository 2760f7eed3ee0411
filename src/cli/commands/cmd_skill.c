/* skill: playbooks of the original tool, run as they are. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/print/skill_print.h"
#include "cli/values.h"
#include "diagnose/recorded.h"
#include "diagnose/skills/skill_run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int list_skills(const struct pb_call *call, struct pb_err *err)
{
    struct pb_skills skills;
    char where[1024];

    int r = pb_skills_find(&skills, err);
    if (r < 0)
        return r;
    pb_skills_print(&skills, pb_call_option(call, "json"));
    pb_skills_where(where, sizeof(where));
    if (!skills.n && !pb_call_option(call, "json"))
        pb_ask_note(&call->ask, "there are no playbooks in %s (skill install DIR copies some)", where);
    pb_skills_done(&skills);
    return 0;
}

static int install_skills(const char *from, struct pb_err *err)
{
    char to[PATH_MAX];

    int n = pb_skills_install(from, stderr, to, err);
    if (n == 0)
        return pb_fail(err, -ENOENT, "%s has no playbook: no folder with SKILL.md or steps.yaml", from);
    if (n > 0)
        printf("%d playbook%s copied to %s\n", n, n == 1 ? "" : "s", to);
    return n < 0 ? n : 0;
}

static int run_over(const struct pb_call *call, const struct pb_skill *skill, const char *const *given,
                    size_t n, const struct pb_targets *targets, struct pb_err *err)
{
    const struct pb_skill_request request = {.skill = skill,
                                             .targets = targets,
                                             .target = call->target,
                                             .given = {given, n},
                                             .timeout_ms = pb_call_ms(call, "timeout")};
    struct pb_skill_result result;

    int r = pb_skill_run(&call->ask, &request, &result, err);
    if (r < 0)
        return r == -EINVAL ? PB_USAGE : r;
    if (pb_call_option(call, "json"))
        pb_skill_result_print_json(skill, &result);
    else
        pb_skill_result_print(skill, &result, call->target);
    pb_skill_result_done(&result);
    return 0;
}

static int run_skill(const struct pb_call *call, const char *id, const char *const *given, size_t n,
                     struct pb_err *err)
{
    struct pb_targets ranks = {0};
    struct pb_skills skills = {0};

    if (!call->target)
        return pb_fail(err, PB_USAGE, "a playbook runs over a job: probing -t PID skill run %s", id);
    int r = pb_skills_find(&skills, err);
    if (r < 0)
        return r;
    const struct pb_skill *skill = pb_skill_named(&skills, id);
    if (!skill)
        r = pb_fail(err, -ENOENT, "there is no playbook '%s' (skill list)", id);
    else if (skill->broken[0])
        r = pb_fail(err, -EBADMSG, "the playbook %s cannot be read: %s", id, skill->broken);
    else if (!skill->text)
        r = pb_fail(err, -ENOENT, "the playbook %s has no steps: it is for people (%s/SKILL.md)", id,
                    skill->folder);
    else
        r = pb_diag_recorded_of(&call->ask, &call->targets, &ranks, err);
    if (r == 0) {
        struct pb_targets own = call->targets;
        own.probed = true;
        r = run_over(call, skill, given, n, ranks.n ? &ranks : &own, err);
    }
    free(ranks.at);
    pb_skills_done(&skills);
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *words[2] = {NULL, NULL}, *given[PB_ARGS_MAX];
    size_t nwords = 0, ngiven = 0;

    for (int i = 0; i < call->nargs; i++) {
        if (strchr(call->args[i], '=')) {
            given[ngiven++] = call->args[i];
        } else if (nwords < 2) {
            words[nwords++] = call->args[i];
        } else {
            return pb_fail(err, PB_USAGE, "'%s' is one word too many, or no NAME=VALUE", call->args[i]);
        }
    }
    if (!nwords || (strcmp(words[0], "list") == 0 && nwords == 1))
        return list_skills(call, err);
    if (strcmp(words[0], "run") == 0 && nwords == 2)
        return run_skill(call, words[1], given, ngiven, err);
    if (strcmp(words[0], "install") == 0 && nwords == 2)
        return install_skills(words[1], err);
    return pb_fail(err, PB_USAGE, "skill takes list, run ID or install DIR");
}

static const struct pb_option options[] = {
    {'p', "param", PB_TEXT_AGAIN("NAME=VALUE"), "run: a parameter of the playbook; may stand several times"},
    {0, "json", NULL, "everything as JSON"},
    {0, "timeout", PB_TIME(.least = 1, .usual = 30000),
     "run: give up after this long: 30, 500ms, 2m (default 30s)"},
    {0},
};

const struct pb_command pb_cmd_skill = {
    .name = "skill",
    .summary = "playbooks: statements, and rules over their rows",
    .synopsis = "[list | run ID [-p NAME=VALUE] | install DIR]",
    .text = "A playbook is a folder with SKILL.md and steps.yaml. They are looked for in ~/.probing/skills, "
            "in .probing/skills of the working folder or one above it, and in PROBING_SKILLS_DIR; the last "
            "of one name counts. `install` copies those of a folder to ~/.probing/skills.\n\n"
            "`run` runs the statements over all ranks of the target's job, in the sandbox of query. "
            "global.python.T is python.T of all ranks, with _rank and _host. What a rule says is a remark: "
            "diagnose gives verdicts. A step that cannot run is named and skipped; steps that would change a "
            "setting or open a page only say so.",
    .example = "probing skill install ./skills\nprobing skill list\n"
               "probing -t train.py skill run slow_rank -p step_window=50",
    .options = options,
    .max_args = PB_ARGS_MAX,
    .flags = PB_CMD_MAY_TARGET | PB_CMD_DEAD | PB_CMD_TOGETHER | PB_CMD_LABELS | PB_CMD_JOB,
    .run = run,
};
