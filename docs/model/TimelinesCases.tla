---- MODULE TimelinesCases ----
(* What the .cfg files choose from. *)
EXTENDS Timelines, TLC
Row == <<"row">>
Other == <<"other">>
None == [row |-> 0]
AnotherRow == [row |-> 1]
ATruncate == [truncate |-> 1]
Symmetry == Permutations(Captures)
====
