---- MODULE FlushTrackerCases ----
(* What the .cfg files choose from. *)
EXTENDS FlushTracker
Fragment(t, last, shapes) == [txn |-> t, commit |-> last, shapes |-> shapes]
(* A transaction of two fragments, in whose commit shape "a" has no change; then one that concerns "a" alone. *)
TwoShapes == << Fragment(1, FALSE, {"a", "b"}), Fragment(1, TRUE, {"b"}), Fragment(2, TRUE, {"a"}) >>
OneShape == << Fragment(1, FALSE, {"a"}), Fragment(1, TRUE, {}), Fragment(2, TRUE, {"a"}) >>
Short == << Fragment(1, TRUE, {"a"}), Fragment(2, TRUE, {"a"}) >>
====
