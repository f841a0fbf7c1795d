/* Preloaded into slurmctld. Its poll of time limits and grace times is "difftime(now, last) >= 30" in a loop that turns once a
 * second, and the 30 is compiled in: with the difference scaled the poll comes every second. Nothing inherits the preload. */
#include <stdlib.h>
#include <time.h>

__attribute__((constructor)) static void only_here(void) { unsetenv("LD_PRELOAD"); }

double difftime(time_t later, time_t earlier) { return (double)(later - earlier) * 30.0; }
