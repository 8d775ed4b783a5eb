------------------------------- MODULE Heals -------------------------------
(* How a follower is healed: it gets the difference from what it has to what the shape has, once another snapshot has
   replaced the one that it began with. The shape's log has snapshots that are taken again, incarnations of the shape,
   marks and folds; and a new source, whose server may lack the end of what the source before had.

   Transaction n of a source inserts or deletes one key, and commits at the LSN Step * n. The offsets between are free
   for differences. Appends and folds are single steps here: ShapeLog has their details. Each action names the code that
   it stands for. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Keys,
    Step,           \* from one commit to the next; 8 in PostgreSQL
    MaxChanges,     \* of a source
    MaxSnapshots,   \* how many are taken, of all sources
    MaxFolds,
    MaxIncarnations,
    MaxSources,
    Mutants         \* errors that are built in; {} for the model itself

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Has(mutant) == mutant \in Mutants

VARIABLES
    source,     \* the newest
    wal,        \* wal[s]: the keys of its transactions
    seen,       \* the transactions that a snapshot of the newest source has contained
    entry,      \* of the shape in the registry: [incarnation, startsAfter: an LSN]
    cursor,     \* the last transaction that the writer has read
    log,        \* log[s]: [changes: those that have rows, end: the last one, snapshots: in the order of attempts]
    exported,   \* a snapshot before its commit, or Nothing
    taken, folds,
    follower    \* [source, tx, attempt: its position, rows, contains: what its snapshot contains,
                \* isWhole: its rows are those at its position], or Nothing

vars == <<source, wal, seen, entry, cursor, log, exported, taken, folds, follower>>

Nothing == [attempt |-> 0]
Lsn(n) == Step * n
Aligned(lsn) == lsn - (lsn % Step)
IsInsert(s, n) == Cardinality({m \in 1..n : wal[s][m] = wal[s][n]}) % 2 = 1
(* What transactions of a source make of rows. *)
After(s, rows, changes) ==
    LET last(k) == {n \in changes : wal[s][n] = k /\ \A m \in changes : wal[s][m] = k => m <= n} IN
    {k \in Keys : IF last(k) = {} THEN k \in rows ELSE \E n \in last(k) : IsInsert(s, n)}

(* shape_log.shape_snapshot *)
Last(s) == IF log[s].snapshots = <<>> THEN Nothing ELSE log[s].snapshots[Len(log[s].snapshots)]
Contains(snapshot, n) == n \in snapshot.contains \/ Lsn(n) <= snapshot.startsAfter
BeginsAt(snapshot) ==
    IF snapshot.isFold THEN snapshot.lsn ELSE IF snapshot.incarnation > 1 THEN Aligned(snapshot.startsAfter) ELSE 0
AttemptAfter(s) == Last(s).attempt + 1
Added(s, snapshot) == [log EXCEPT ![s].snapshots = Append(@, snapshot)]
Mark(s) == [attempt |-> AttemptAfter(s), incarnation |-> entry.incarnation, startsAfter |-> 999, lsn |-> 999,
            isFold |-> FALSE, isMark |-> TRUE, madeFrom |-> 0, contains |-> {}, rows |-> {}]

(* What a log says of the rows up to an LSN: those of a snapshot, and the changes that it does not contain. *)
Told(s, snapshot, lsn) ==
    After(s, snapshot.rows, {n \in log[s].changes : Lsn(n) <= lsn /\ ~Contains(snapshot, n)})
(* shape_log.table.found_shape: the snapshot that the shape begins with is there. *)
IsReadable ==
    Last(source) # Nothing /\ ~Last(source).isMark /\ Last(source).incarnation = entry.incarnation

-----------------------------------------------------------------------------
(* The server, the registry, and the writer *)

Commit(k) ==
    /\ Len(wal[source]) < MaxChanges
    /\ wal' = [wal EXCEPT ![source] = Append(@, k)]
    /\ UNCHANGED <<source, seen, entry, cursor, log, exported, taken, folds, follower>>

(* The shape is begun again, at a place that capture has reached. *)
Resync ==
    /\ entry.incarnation < MaxIncarnations
    /\ \E n \in cursor..Len(wal[source]) : \E between \in 0..1 :
        entry' = [incarnation |-> entry.incarnation + 1, startsAfter |-> Lsn(n) + between]
    /\ UNCHANGED <<source, wal, seen, cursor, log, exported, taken, folds, follower>>

(* capture with --new-epoch, or on another server, which may lack some: the shape begins again in another log. *)
NewSource ==
    /\ source < MaxSources
    /\ source' = source + 1
    /\ \E n \in 0..Len(wal[source]) :
        /\ wal' = [wal EXCEPT ![source + 1] = SubSeq(wal[source], 1, n)]
        /\ cursor' = n /\ seen' = 1..n
    /\ entry' = [incarnation |-> 1, startsAfter |-> -1]
    /\ exported' = Nothing
    /\ UNCHANGED <<log, taken, folds, follower>>

(* shape_log.write.driver: before the first change of a later incarnation, the log gets its mark, or has its snapshot. *)
Write ==
    LET next == cursor + 1
        isLater == entry.incarnation > 1 /\ Lsn(next) > entry.startsAfter
        isMarked == Last(source) # Nothing /\ Last(source).incarnation = entry.incarnation
        marked == IF isLater /\ ~isMarked /\ ~Has("no mark") THEN Added(source, Mark(source)) ELSE log IN
    /\ next <= Len(wal[source])
    /\ cursor' = next
    /\ log' = [marked EXCEPT ![source].changes = @ \cup {next}, ![source].end = next]
    /\ UNCHANGED <<source, wal, seen, entry, exported, taken, folds, follower>>
(* What is left of an incarnation, once it has ended, never comes. *)
Skip ==
    /\ Lsn(cursor + 1) <= entry.startsAfter
    /\ cursor' = entry.startsAfter \div Step
    /\ UNCHANGED <<source, wal, seen, entry, log, exported, taken, folds, follower>>

-----------------------------------------------------------------------------
(* shape_log.snapshot.attempt, once everything is visible that the incarnation starts after. Of the transactions of a key, only
   the last one may be invisible yet, which still has the lock of the row. *)
Export ==
    /\ exported = Nothing /\ taken < MaxSnapshots
    /\ taken' = taken + 1
    /\ \E unseen \in SUBSET (1..Len(wal[source])) :
        LET contains == (1..Len(wal[source])) \ unseen IN
        /\ \A n \in unseen : \A m \in n + 1..Len(wal[source]) : wal[source][m] # wal[source][n]
        /\ seen \subseteq contains
        /\ \A n \in unseen : Lsn(n) > entry.startsAfter \/ Has("does not wait for the start")
        /\ seen' = contains
        \* Attempts are times: upkeep can add some before this one.
        /\ exported' = [attempt |-> AttemptAfter(source) + 1, incarnation |-> entry.incarnation,
                        startsAfter |-> entry.startsAfter, lsn |-> Lsn(Len(wal[source])), isFold |-> FALSE,
                        isMark |-> FALSE, madeFrom |-> 0, contains |-> contains, rows |-> After(source, {}, contains)]
    /\ UNCHANGED <<source, wal, entry, cursor, log, folds, follower>>

(* shape_log.shape_snapshot.may_replace *)
MayReplace(new, old) ==
    /\ new.attempt > old.attempt
    /\ old # Nothing => IF new.incarnation # old.incarnation THEN new.incarnation > old.incarnation
                        ELSE old.isFold => old.contains \subseteq new.contains \/ Has("replaces any fold")
CommitSnapshot ==
    /\ exported # Nothing
    /\ log' = IF MayReplace(exported, Last(source)) THEN Added(source, exported) ELSE log
    /\ exported' = Nothing
    /\ UNCHANGED <<source, wal, seen, entry, cursor, taken, folds, follower>>

(* shape_log.table.retention: what is up to the horizon is replaced, and so is each snapshot before. *)
Fold(s, horizon) ==
    LET last == Last(s)
        madeFrom == IF last.isFold THEN last.madeFrom ELSE last.attempt
        fold == [last EXCEPT !.attempt = @ + 1, !.lsn = Lsn(horizon), !.isFold = TRUE, !.madeFrom = madeFrom,
                             !.contains = @ \cup 1..horizon, !.rows = Told(s, last, Lsn(horizon))] IN
    /\ folds < MaxFolds /\ last # Nothing /\ Lsn(horizon) >= last.lsn /\ horizon \in log[s].changes
    /\ log' = [log EXCEPT ![s].snapshots = <<fold>>, ![s].changes = {n \in @ : n > horizon}]
    /\ folds' = folds + 1
    /\ UNCHANGED <<source, wal, seen, entry, cursor, exported, taken, follower>>

-----------------------------------------------------------------------------
(* Followers. Each step is what one read tells, and what the follower has then; Nothing if it must begin again. *)

(* shape_log.snapshot_history.at_position: what tells the rows of a follower. *)
AtPosition(s, at) ==
    LET all == {log[s].snapshots[i] : i \in 1..Len(log[s].snapshots)}
        own == {x \in all : x.attempt = at.attempt /\ ~x.isMark}
        folded == {x \in all : x.isFold /\ x.madeFrom <= at.attempt /\ at.attempt < x.attempt}
        found == {x \in IF own # {} THEN own ELSE folded : at.tx >= BeginsAt(x)} IN
    IF found = {} THEN Nothing ELSE CHOOSE x \in found : TRUE

(* shape_log.table.followed_log.with_difference, shape_log.table.difference *)
Healed(at, upto) ==
    LET last == Last(source)
        begun == IF Has("heals from the last snapshot") THEN last ELSE AtPosition(at.source, at)
        isPast == at.source = source /\ at.tx >= upto
        tx == IF Has("ends after everything") THEN Max({upto, Lsn(log[source].end)})
              ELSE IF isPast /\ ~Has("keeps the offset") THEN at.tx + 1 ELSE upto
        isFree == tx <= last.startsAfter \/ tx # Aligned(tx) \/ Has("takes any offset")
        had == Told(at.source, begun, at.tx)
        now == Told(source, last, upto)
        rows == (at.rows \ (had \ now)) \cup (now \ had) IN
    IF begun = Nothing THEN Nothing
    ELSE IF ~IsReadable THEN at
    ELSE IF isPast /\ ~isFree THEN Nothing
    ELSE IF Has("stores the rows first") /\ at.rows # rows THEN [at EXCEPT !.rows = rows, !.isWhole = FALSE]
    ELSE [source |-> source, tx |-> tx, attempt |-> last.attempt, rows |-> rows, contains |-> last.contains,
          isWhole |-> TRUE]

End(s) == Max({Lsn(log[s].end), BeginsAt(Last(s))})
Continued(at) ==
    LET new == {n \in log[source].changes : Lsn(n) > at.tx /\ ~Contains(Last(source), n)} IN
    [at EXCEPT !.tx = Max({@, End(source)}), !.rows = After(source, @, new)]

(* shape_log.table.shape_finder._last_missed: a fold leaves the commit row of its horizon. *)
Missed(at) ==
    LET first == log[source].snapshots[1]
        commits == log[source].changes \cup (IF first.isFold THEN {first.lsn \div Step} ELSE {}) IN
    {n \in commits : Lsn(n) > at.tx /\ Contains(Last(source), n)}

(* shape_log.table.shape_finder.find_log *)
Followed(at) ==
    LET last == Last(source)
        isOld == last.incarnation > 1 /\ at.tx <= last.startsAfter
        begun == AtPosition(source, at)
        isFollowed == ~last.isFold \/ Has("follows any fold") \/ (at.tx >= last.lsn /\ at.attempt >= last.madeFrom) IN
    IF at.source # source /\ ~Has("compares other sources")
    THEN IF Last(source) = Nothing THEN at ELSE Healed(at, BeginsAt(last))
    ELSE IF last = Nothing THEN at
    ELSE IF at.attempt = last.attempt /\ at.tx >= BeginsAt(last) THEN Continued(at)
    ELSE IF isOld /\ (begun = Nothing \/ begun.incarnation < last.incarnation) THEN Healed(at, BeginsAt(last))
    ELSE IF ~isFollowed THEN Nothing
    ELSE IF last.isFold THEN Continued(at)
    ELSE Healed(at, IF Missed(at) = {} THEN at.tx ELSE Lsn(Max(Missed(at))))

Follow ==
    /\ IF follower # Nothing THEN follower' = Followed(follower)
       ELSE /\ IsReadable
            /\ follower' = [source |-> source, tx |-> End(source), attempt |-> Last(source).attempt,
                            rows |-> Told(source, Last(source), Lsn(log[source].end)),
                            contains |-> Last(source).contains, isWhole |-> TRUE]
    /\ follower' # follower
    /\ UNCHANGED <<source, wal, seen, entry, cursor, log, exported, taken, folds>>

-----------------------------------------------------------------------------
Init ==
    /\ source = 1 /\ wal = [s \in 1..MaxSources |-> <<>>] /\ seen = {}
    /\ entry = [incarnation |-> 1, startsAfter |-> -1] /\ cursor = 0
    /\ log = [s \in 1..MaxSources |-> [changes |-> {}, end |-> 0, snapshots |-> <<>>]]
    /\ exported = Nothing /\ taken = 0 /\ folds = 0
    /\ follower = Nothing

Next ==
    \/ Resync \/ NewSource \/ Write \/ Skip \/ Export \/ CommitSnapshot \/ Follow
    \/ \E k \in Keys : Commit(k)
    \/ \E s \in 1..source : \E horizon \in 1..MaxChanges : Fold(s, horizon)
Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Keys)

-----------------------------------------------------------------------------
(* What must hold *)

Rows(s, contains, lsn) == After(s, {}, {n \in 1..Len(wal[s]) : n \in contains \/ Lsn(n) <= lsn})
ReadIsRight ==
    LET last == Last(source)
        end == Lsn(log[source].end) IN
    IsReadable => Told(source, last, end) = Rows(source, last.contains, end)
FollowerIsRight ==
    follower # Nothing /\ follower.isWhole => follower.rows = Rows(follower.source, follower.contains, follower.tx)
(* Who has nothing more to read has the rows of a reader that begins now. *)
NothingIsMissed ==
    follower # Nothing /\ IsReadable /\ Followed(follower) = follower =>
        follower.source = source /\ follower.rows = Told(source, Last(source), Lsn(log[source].end))
(* A difference comes after all that the follower has. *)
PositionRises ==
    [][follower # Nothing /\ follower' # Nothing /\ follower'.source = follower.source /\ follower' # follower
       => follower'.tx > follower.tx]_vars
(* Only a fold makes a follower begin again, or the last free offset before the next transaction. *)
HealsUnlessFolded ==
    [][follower # Nothing /\ follower' = Nothing =>
       \/ \E s \in 1..source : log[s].snapshots # <<>> /\ log[s].snapshots[1].isFold
       \/ (follower.tx + 1) % Step = 0]_vars
=============================================================================
