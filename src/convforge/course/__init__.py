"""For learners and teachers: studies, reports, a grader of own kernels, traces, languages (extra ``lab``)."""
