/*
 * For tests that start the real programs: processes with their output read through a pipe, waited
 * for by what they say and not by time, and never left behind. Every wait has a deadline of 60 s
 * (times KVD_PATIENCE), after which the test fails.
 */
#ifndef TESTS_SUPPORT_PROC_H
#define TESTS_SUPPORT_PROC_H

#include <stddef.h>
#include <sys/types.h>

enum { PROC_OUTPUT_MAX = 1 << 16, PROC_ARGS_MAX = 48 };

struct proc {
    pid_t pid;
    int fd;                       /* its stdout and stderr */
    char output[PROC_OUTPUT_MAX]; /* what was read so far, terminated */
    size_t n;
};

/* Path of a program in the build folder: proc_program("cachesvc/kvdepotd"). KVD_BUILD names the
 * folder. */
const char *proc_program(const char *relative);

/* Starts argv[0]; argv ends with NULL. */
void proc_start(struct proc *p, const char *const *argv);

/* Reads output until it holds `text`. Fails the test when the process ends before or the deadline
 * passes. */
void proc_expect(struct proc *p, const char *text);

/* Sends a signal (0: none), reads the rest of the output, waits. Exit status, or 128 + signal. */
int proc_end(struct proc *p, int sig);

/* Starts, waits, returns the exit status; output in p. */
int proc_run(struct proc *p, const char *const *argv);

/* A fresh folder below TMPDIR, and its removal with all that is in it. */
void proc_folder(char *ret_path, size_t n);
void proc_remove_folder(const char *path);

#endif
