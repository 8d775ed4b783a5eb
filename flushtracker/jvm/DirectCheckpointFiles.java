package flushtracker;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import STREAMING.CheckpointFileManager;
import STREAMING.FileSystemBasedCheckpointFileManager;

/**
 * Writes each file of a checkpoint on S3A by one request, under its own name.
 *
 * An object exists whole or not at all, so no temporary one has to be renamed. Whether a file that must not be replaced
 * exists is for the store to decide, by a conditional write, or before Hadoop 3.4.2 for a look just before the write. One
 * that may be replaced is not, either, if it was not there when it was begun: a request that comes late, of a driver that
 * is gone, then replaces nothing that its successor has written.
 * Every error reaches Spark, which then does not take the file as written. On all other storages it does what Spark's
 * own does: Spark has one class for all queries of a session, and an application's others may be elsewhere.
 *
 * STREAMING is Spark's package, which differs between its versions.
 */
public class DirectCheckpointFiles extends FileSystemBasedCheckpointFileManager {
    private static final String S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem";

    private final FileSystem system;

    public DirectCheckpointFiles(Path path, Configuration hadoop) throws IOException {
        super(path, hadoop);
        system = path.getFileSystem(hadoop);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
        if (!system.getClass().getName().equals(S3A)) {
            return super.createAtomic(path, overwriteIfPossible);
        }
        try {
            return new NewFile(system, path, overwriteIfPossible);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** A file that exists from when it is closed. */
    private static class NewFile extends CheckpointFileManager.CancellableFSDataOutputStream {
        private static final String CONDITION = "fs.option.create.conditional.overwrite";
        private static final String WRITER = "flushtracker-writer";

        private final FileSystem system;
        private final Path path;
        private final boolean mustBeNew;
        private final String writer;
        private final FSDataOutputStream object;
        private boolean ended = false;

        NewFile(FileSystem system, Path path, boolean replaces) throws IOException {
            this(system, path, !replaces || isMissing(system, path), UUID.randomUUID().toString());
        }

        private NewFile(FileSystem system, Path path, boolean mustBeNew, String writer) throws IOException {
            this(system, path, mustBeNew, writer, create(system, path, mustBeNew, writer));
        }

        private NewFile(
                FileSystem system, Path path, boolean mustBeNew, String writer, FSDataOutputStream object) {
            super(object);
            this.system = system;
            this.path = path;
            this.mustBeNew = mustBeNew;
            this.writer = writer;
            this.object = object;
        }

        /** Whether a condition can be set, and holds now. */
        private static boolean isMissing(FileSystem system, Path path) throws IOException {
            if (!system.hasPathCapability(path, CONDITION)) {
                return false;
            }
            try {
                system.getXAttrs(path);
                return false;
            } catch (FileNotFoundException missing) {
                return true;
            }
        }

        /** Requests nothing yet. */
        private static FSDataOutputStream create(FileSystem system, Path path, boolean mustBeNew, String writer)
                throws IOException {
            FSDataOutputStreamBuilder builder = system.createFile(path);
            builder.overwrite(true);
            builder.must("fs.s3a.create.performance", "true");
            if (mustBeNew) {
                builder.must("fs.s3a.create.header." + WRITER, writer);
                if (system.hasPathCapability(path, CONDITION)) {
                    builder.must(CONDITION, "true");
                }
            }
            return (FSDataOutputStream) builder.build();
        }

        public synchronized void close() throws IOException {
            if (ended) {
                return;
            }
            ended = true;
            if (mustBeNew && !system.hasPathCapability(path, CONDITION) && system.exists(path)) {
                throw new FileAlreadyExistsException(path + " already exists");
            }
            try {
                object.close();
            } catch (IOException error) {
                if (!mustBeNew) {
                    throw error;
                }
                requireOwn(error);
            }
        }

        /** Returns if the store has this file, and only its answer was lost. */
        private void requireOwn(IOException error) throws IOException {
            byte[] found = null;
            try {
                Map headers = system.getXAttrs(path);
                for (Object name : headers.keySet()) {
                    // The names of HTTP have no case, and a store or proxy may change it.
                    if (("header." + WRITER).equalsIgnoreCase((String) name)) {
                        found = (byte[]) headers.get(name);
                    }
                }
            } catch (IOException missing) {
                throw error;
            }
            if (!Arrays.equals(found, writer.getBytes(StandardCharsets.UTF_8))) {
                throw (IOException) new FileAlreadyExistsException(path + " already exists").initCause(error);
            }
        }

        /** Called after an error, too; without effect once the object is closed. */
        public synchronized void cancel() {
            ended = true;
            object.abort();
        }
    }
}
