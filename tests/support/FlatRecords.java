import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

/** What a sink of Connect gets of the records in stdin, each its key, a tab and its value: flat, in the mode of the argument. */
public class FlatRecords {
    public static void main(String[] arguments) throws Exception {
        JsonConverter keys = converter(true), values = converter(false), plain = new JsonConverter();
        plain.configure(Map.of("schemas.enable", "false"), false);
        ExtractNewRecordState<SinkRecord> flat = new ExtractNewRecordState<>();
        flat.configure(Map.of("delete.tombstone.handling.mode", arguments[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            SchemaAndValue key = read(keys, parts[0]), value = read(values, parts[1]);
            SinkRecord record = flat.apply(
                new SinkRecord("orders", 0, key.schema(), key.value(), value.schema(), value.value(), 0));
            System.out.println(record == null ? "dropped" : record.value() == null ? "tombstone"
                : new String(plain.fromConnectData("orders", record.valueSchema(), record.value()), "UTF-8"));
        }
    }

    private static JsonConverter converter(boolean isKey) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", "true"), isKey);
        return made;
    }

    private static SchemaAndValue read(JsonConverter converter, String text) throws Exception {
        return converter.toConnectData("orders", text.isEmpty() ? null : text.getBytes("UTF-8"));
    }
}
