/*
 * stopwatch.h - plans a problem once, runs it many times, and tells the median. For `run` and `demo`; `bench` pairs its
 * samples with ceilings and rivals instead.
 */
#ifndef MLA_CLI_STOPWATCH_H
#define MLA_CLI_STOPWATCH_H

#include "mla/mla.h"

typedef struct stopwatch_result {
    double median, low, high; /* seconds; low and high are the quartiles */
    double least;             /* on a busy machine the nearest to what a quiet one takes */
    int n_sample;
} stopwatch_result;

/* Runs until `budget` seconds or 1000 samples. Slow runs get up to ten times the budget until there are five samples
 * after the first one, which is warm-up when others follow; one run is always made. */
mla_status stopwatch_problem(const mla_problem *problem, const mla_plan_options *options, double budget,
                             mla_plan_info *info, stopwatch_result *result);

/* Quantile of unsorted values (0: least, 0.5: median), between neighbours by interpolation; sorts them. n >= 1. */
double stopwatch_quantile(double *value, size_t n, double quantile);

#endif
