"""For the learner and the teacher: studies, reports, the grader of own kernels, traces, languages (extra ``lab``)."""
