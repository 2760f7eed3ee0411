/* tool_settings: see tool_settings.h. */
#include "ask/tool_settings.h"

#include "ask/process_settings.h"
#include "engine/shared/archive.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct pb_tool_setting_info pb_tool_setting_info[PB_TOOL_SETTINGS] = {
    [PB_TOOL_ARCHIVE] = {"probing.archive", "PROBING_ARCHIVE",
                         "the folder that archive writes and query reads; a setting of this tool, not of the "
                         "process: PROBING_ARCHIVE, --to, --archive"},
    [PB_TOOL_DIAGNOSE_RULES] = {"probing.diagnose.rules", "PROBING_DIAGNOSE_RULES",
                                "a folder with rules of your own for diagnose; a setting of this tool: "
                                "PROBING_DIAGNOSE_RULES"},
    [PB_TOOL_DIAGNOSE_EVERY] =
        {"probing.diagnose.every", "PROBING_DIAGNOSE_EVERY",
         "how often a service looks by itself for what is wrong, such as 30s; a setting "
         "of the service: PROBING_DIAGNOSE_EVERY, serve --diagnose"},
    [PB_TOOL_ALERT_WEBHOOK] =
        {"probing.alert.webhook", "PROBING_ALERT_WEBHOOK",
         "the address that a service posts each new finding to; a setting of the service: "
         "PROBING_ALERT_WEBHOOK; shown without its path, which may be a secret"},
};

const char *pb_tool_setting_get(enum pb_tool_setting setting)
{
    const char *value = getenv(pb_tool_setting_info[setting].variable);

    return value && value[0] ? value : NULL;
}

int pb_tool_setting_find(const char *name)
{
    for (int i = 0; i < PB_TOOL_SETTINGS; i++)
        if (strcmp(name, pb_tool_setting_info[i].name) == 0)
            return i;
    return -ENOENT;
}

/* "https://hooks.slack.com/..": who has the path may post there. */
static void cut_address(const char *address, char *ret, size_t size)
{
    const char *host = strstr(address, "://"), *at;

    host = host ? host + 3 : address;
    size_t n = strcspn(host, "/?#");
    /* A user and password before the host. */
    for (at = host + n; at > host && at[-1] != '@'; at--)
        ;
    snprintf(ret, size, "%.*s%.*s%s", (int)(host - address), address, (int)(n - (size_t)(at - host)), at,
             host[n] ? "/.." : "");
}

static void show_folder(char value[PATH_MAX], char usual[PATH_MAX])
{
    const char *set = pb_tool_setting_get(PB_TOOL_ARCHIVE);

    if (!set || strcmp(set, "none") != 0)
        pb_archive_folder(set, value, PATH_MAX, NULL);
    pb_archive_folder_usual(usual, PATH_MAX);
}

void pb_tool_settings_each(void (*each)(void *arg, const struct pb_shown_setting *setting), void *arg)
{
    for (int i = 0; i < PB_TOOL_SETTINGS; i++) {
        const char *set = pb_tool_setting_get((enum pb_tool_setting)i);
        char value[PATH_MAX] = "none", usual[PATH_MAX] = "none";
        if (i == PB_TOOL_ARCHIVE)
            show_folder(value, usual);
        else if (set && i == PB_TOOL_ALERT_WEBHOOK)
            cut_address(set, value, sizeof(value));
        else if (set)
            snprintf(value, sizeof(value), "%s", set);
        each(arg, &(const struct pb_shown_setting){
                      .name = pb_tool_setting_info[i].name,
                      .value = value,
                      .fallback = usual,
                      .origin = pb_origin_name(set ? PB_ORIGIN_ENVIRONMENT : PB_ORIGIN_DEFAULT),
                      .text = pb_tool_setting_info[i].text});
    }
}
