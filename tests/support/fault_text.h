/* Between fault_io.c and fault_text.c. */
#ifndef TESTS_SUPPORT_FAULT_TEXT_H
#define TESTS_SUPPORT_FAULT_TEXT_H

/* Adds what KVD_FAULTS in the environment says; ends the process where that is wrong. */
void fault_add_environment(void);

#endif
