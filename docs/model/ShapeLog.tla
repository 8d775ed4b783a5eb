------------------------------ MODULE ShapeLog ------------------------------
(* The log of one shape: writers that append and notify, snapshots, folds, and followers.

   The shape's changes are numbered 1, 2, ... in the order of their commits, each by a transaction of its own. Change c
   adds row c to the shape; row 0 was there before. So after change c the shape has the rows 0..c. A reader that takes a
   change twice has its row twice: rows are bags, functions from row to count.

   Each action names the code that it stands for. *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Changes,        \* how many changes there are
    Writers,        \* processes of the writers' job that run at the same time
    MaxStarts,      \* how often a writer starts
    MaxAttempts,    \* how many snapshots and folds are begun
    MaxLost,        \* how often the checkpoint is lost
    Mutants

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Has(mutant) == mutant \in Mutants

VARIABLES
    wal,        \* the last change that is committed and published
    log,        \* log[c]: how many rows of change c the table has
    version,    \* the app transaction of the last append: [claim, batch]
    snapshot,   \* the last row "snapshot": [attempt, contains: the rows of it, isFold, horizon: up to where rows were folded]
    exported,   \* a snapshot that is being taken, before its commit: [attempt, contains, before], or Nothing
    planned,    \* a fold that is planned, before its commit: [attempt, horizon, rows], or Nothing
    attempts,   \* how many were begun
    writer,     \* writer[w]: Down, or [claim, end: of the log, -1 before it is read, cursor, from: the checkpoint, batch, appended]
    checkpoint, \* [cursor, claim]
    starts, lost,
    notified,   \* the greatest notification
    follower    \* [offset, attempt, rows], or Nothing

vars == <<wal, log, version, snapshot, exported, planned, attempts, writer, checkpoint, starts, lost, notified, follower>>

Nothing == [attempt |-> -1]
Down == [claim |-> 0]
IsUp(w) == writer[w] # Down
NoRows == [r \in 0..Changes |-> 0]
RowsUpTo(c) == [r \in 0..Changes |-> IF r <= c THEN 1 ELSE 0]

(* The last change that the log has, as a row or in a fold. *)
End == Max({snapshot.horizon} \cup {c \in 1..Changes : log[c] > 0})

-----------------------------------------------------------------------------
(* PostgreSQL and capture *)
Commit ==
    /\ wal < Changes
    /\ wal' = wal + 1
    /\ UNCHANGED <<log, version, snapshot, exported, planned, attempts, writer, checkpoint, starts, lost, notified, follower>>

-----------------------------------------------------------------------------
(* shape_log.write.driver, shape_log.table.claim *)

(* LogClaim.take. The end is read in a later step, whatever happens in between. *)
Claim(w) ==
    /\ ~IsUp(w) /\ starts < MaxStarts
    /\ starts' = starts + 1
    /\ version' = [claim |-> version.claim + 1, batch |-> 0]
    /\ writer' = [writer EXCEPT ![w] =
        [claim |-> version.claim + 1, end |-> -1, cursor |-> checkpoint.cursor, from |-> checkpoint, batch |-> 0, appended |-> FALSE]]
    /\ UNCHANGED <<wal, log, snapshot, exported, planned, attempts, checkpoint, lost, notified, follower>>

(* ShapeWriter.resume_at: past the end of the log; LogEnds notifies that again. *)
ReadEnd(w) ==
    /\ IsUp(w) /\ writer[w].end = -1
    /\ LET end == IF Has("trusts the checkpoint") THEN writer[w].cursor ELSE End IN
       /\ writer' = [writer EXCEPT ![w].end = end, ![w].cursor = Max({@, end})]
       /\ notified' = Max({notified, IF Has("trusts the checkpoint") THEN 0 ELSE end})
    /\ UNCHANGED <<wal, log, version, snapshot, exported, planned, attempts, checkpoint, starts, lost, follower>>

(* WriteDriver.handle_batch: the rows of the next changes, in one commit, which Delta and LogClaim refuse unless the last
   version is this writer's. *)
Append(w, to) ==
    LET me == writer[w] IN
    /\ IsUp(w) /\ me.end >= 0 /\ ~me.appended
    /\ me.cursor < to /\ to <= wal
    /\ IF version.claim = me.claim \/ Has("appends rows unfenced")
       THEN /\ log' = [c \in 1..Changes |-> IF me.cursor < c /\ c <= to THEN log[c] + 1 ELSE log[c]]
            /\ version' = [claim |-> me.claim, batch |-> me.batch + 1]
            /\ writer' = [writer EXCEPT ![w].appended = TRUE, ![w].cursor = to, ![w].batch = @ + 1]
            /\ notified' = IF Has("notifies before it appends") THEN Max({notified, to}) ELSE notified
       ELSE /\ writer' = [writer EXCEPT ![w] = Down]
            /\ notified' = IF Has("notifies before it appends") THEN Max({notified, to}) ELSE notified
            /\ UNCHANGED <<log, version>>
    /\ UNCHANGED <<wal, snapshot, exported, planned, attempts, checkpoint, starts, lost, follower>>

(* shape_log.write.notifier, then Spark's commit of the batch. *)
NotifyAndCommit(w) ==
    LET me == writer[w] IN
    /\ IsUp(w) /\ me.appended
    /\ notified' = Max({notified, me.cursor})
    /\ IF me.from = checkpoint
       THEN /\ checkpoint' = [cursor |-> me.cursor, claim |-> me.claim]
            /\ writer' = [writer EXCEPT ![w].appended = FALSE, ![w].from = [cursor |-> me.cursor, claim |-> me.claim]]
       ELSE /\ writer' = [writer EXCEPT ![w] = Down]
            /\ UNCHANGED checkpoint
    /\ UNCHANGED <<wal, log, version, snapshot, exported, planned, attempts, starts, lost, follower>>

(* At any moment; between the append and the notification too. *)
Kill(w) ==
    /\ IsUp(w) /\ starts < MaxStarts
    /\ writer' = [writer EXCEPT ![w] = Down]
    /\ UNCHANGED <<wal, log, version, snapshot, exported, planned, attempts, checkpoint, starts, lost, notified, follower>>

LoseCheckpoint ==
    /\ lost < MaxLost /\ \A w \in Writers : ~IsUp(w)
    /\ starts < MaxStarts
    /\ lost' = lost + 1
    /\ checkpoint' = [cursor |-> 0, claim |-> 0]
    /\ UNCHANGED <<wal, log, version, snapshot, exported, planned, attempts, writer, starts, notified, follower>>

-----------------------------------------------------------------------------
(* shape_log.snapshot: an MVCC snapshot has some of what is committed, not a prefix, since transactions become visible in any
   order. The advisory lock of postgres.snapshot_export makes each contain what an earlier one does. *)
Export ==
    /\ exported = Nothing /\ attempts < MaxAttempts
    /\ attempts' = attempts + 1
    /\ \E unseen \in SUBSET (1..wal) :
        LET contains == (0..wal) \ unseen IN
        /\ snapshot.contains \subseteq contains
        /\ exported' = [attempt |-> attempts + 1, contains |-> contains, before |-> snapshot.attempt]
    /\ UNCHANGED <<wal, log, version, snapshot, planned, writer, checkpoint, starts, lost, notified, follower>>

(* shape_log.table.files.append_snapshot: refused if the log has a later one, or one that this one does not know. *)
CommitSnapshot ==
    /\ exported # Nothing
    /\ exported' = Nothing
    /\ IF exported.before = snapshot.attempt
       THEN snapshot' = [snapshot EXCEPT !.attempt = exported.attempt, !.contains = exported.contains, !.isFold = FALSE]
       ELSE UNCHANGED snapshot
    /\ UNCHANGED <<wal, log, version, planned, attempts, writer, checkpoint, starts, lost, notified, follower>>

-----------------------------------------------------------------------------
(* Reading. shape_log.shape_snapshot: the snapshot's rows, and the changes that it does not contain. *)
Fold(to) ==
    [r \in 0..Changes |-> (IF r \in snapshot.contains THEN 1 ELSE 0) +
        (IF r > 0 /\ r <= to /\ (r \notin snapshot.contains \/ Has("takes what is contained")) THEN log[r] ELSE 0)]
IsReadable(to) == snapshot.attempt > 0 /\ Max(snapshot.contains) <= to

(* shape_log.table.retention: what is up to the horizon becomes a snapshot. Rows that came before the commit stay. *)
Plan(horizon) ==
    /\ planned = Nothing /\ attempts < MaxAttempts
    /\ snapshot.horizon < horizon /\ horizon <= End /\ IsReadable(horizon)
    /\ attempts' = attempts + 1
    /\ planned' = [attempt |-> attempts + 1, horizon |-> horizon, before |-> snapshot.attempt]
    /\ UNCHANGED <<wal, log, version, snapshot, exported, writer, checkpoint, starts, lost, notified, follower>>
CommitFold ==
    /\ planned # Nothing
    /\ planned' = Nothing
    /\ IF planned.before = snapshot.attempt \/ Has("folds what it does not know")
       THEN /\ snapshot' = IF planned.attempt < snapshot.attempt THEN [snapshot EXCEPT !.horizon = planned.horizon]
                          ELSE [attempt |-> planned.attempt, contains |-> 0..planned.horizon, isFold |-> TRUE,
                                horizon |-> planned.horizon]
            /\ log' = [c \in 1..Changes |-> IF c <= (IF Has("folds one too many") THEN planned.horizon + 1 ELSE planned.horizon)
                                            THEN 0 ELSE log[c]]
       ELSE UNCHANGED <<snapshot, log>>
    /\ UNCHANGED <<wal, version, exported, attempts, writer, checkpoint, starts, lost, notified, follower>>

(* shape_log.position: a follower continues from the attempt that it began with, or from the horizon of a fold; else it
   begins again, or gets the difference from what it has: with either, it has the rows of the log's end. *)
Follow ==
    LET continues == /\ follower # Nothing
                     /\ \/ follower.attempt = snapshot.attempt
                        \/ Has("ignores the attempt")
                        \/ snapshot.isFold /\ follower.offset >= snapshot.horizon
        changed == [r \in 0..Changes |->
            IF r > follower.offset /\ r <= End /\ r \notin snapshot.contains THEN log[r] ELSE 0] IN
    /\ snapshot.attempt > 0
    /\ IF continues
       THEN follower' = [offset |-> Max({follower.offset, End}), attempt |-> snapshot.attempt,
                         rows |-> [r \in 0..Changes |-> follower.rows[r] + changed[r]]]
       ELSE /\ IsReadable(End)
            /\ follower' = [offset |-> End, attempt |-> snapshot.attempt, rows |-> Fold(End)]
    /\ UNCHANGED <<wal, log, version, snapshot, exported, planned, attempts, writer, checkpoint, starts, lost, notified>>

-----------------------------------------------------------------------------
Init ==
    /\ wal = 0
    /\ log = [c \in 1..Changes |-> 0]
    /\ version = [claim |-> 0, batch |-> 0]
    /\ snapshot = [attempt |-> 0, contains |-> {}, isFold |-> FALSE, horizon |-> 0]
    /\ exported = Nothing /\ planned = Nothing /\ attempts = 0
    /\ writer = [w \in Writers |-> Down]
    /\ checkpoint = [cursor |-> 0, claim |-> 0]
    /\ starts = 0 /\ lost = 0 /\ notified = 0
    /\ follower = Nothing

Next ==
    \/ Commit \/ LoseCheckpoint \/ Export \/ CommitSnapshot \/ CommitFold \/ Follow
    \/ \E horizon \in 1..Changes : Plan(horizon)
    \/ \E w \in Writers : Claim(w) \/ ReadEnd(w) \/ NotifyAndCommit(w) \/ Kill(w) \/ \E to \in 1..Changes : Append(w, to)

Fairness ==
    /\ WF_vars(Commit)
    /\ \A w \in Writers : WF_vars(ReadEnd(w)) /\ WF_vars(NotifyAndCommit(w)) /\ WF_vars(Append(w, wal))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
IsInLog(c) == log[c] > 0 \/ c <= snapshot.horizon
NotifiedIsDurable == \A c \in 1..notified : IsInLog(c)
NoRowTwice == \A c \in 1..Changes : log[c] <= 1
NoGap == \A c \in 1..End : IsInLog(c)
ReadIsRight == IsReadable(End) => Fold(End) = RowsUpTo(End)
FollowerIsRight == follower # Nothing => follower.rows = RowsUpTo(follower.offset)
NotificationsRise == [][notified' >= notified]_vars
(* If a writer stays up, all is notified in the end. *)
EverythingIsNotified == (<>[](\E w \in Writers : IsUp(w) /\ version.claim = writer[w].claim)) => <>(notified = Changes)
=============================================================================
