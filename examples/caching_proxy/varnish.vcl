# Varnish in front of `flushtracker serve`: what nginx.conf beside it does, and a change reaches all who wait at once.
#   varnishd -f varnish.vcl -s malloc,2g -a shapes=127.0.0.1:8080 -a orders=127.0.0.1:8081 \
#     -p http_resp_hdr_len=64k -p http_resp_size=128k -p http_req_hdr_len=32k -p http_req_size=64k \
#     -p workspace_backend=256k -p workspace_client=256k -p feature=+http2
# The socket `shapes` serves all shapes to whoever reaches it, `orders` one shape to those whom you let in. The types of a
# shape's columns are a header, some 50 bytes for each, and an address may be as long as the server takes.
vcl 4.1;
import std;

backend server {
  .host = "127.0.0.1";
  .port = "9470";
  # A request waits up to 20 s for a change, and a client that gets events gets a comment every 20 s.
  .first_byte_timeout = 60s;
  .between_bytes_timeout = 60s;
}

# Each of these ends with `return`, so nothing of Varnish's own rules follows: cookies would make each request its own, and
# unknown methods would be passed on as they are, with whatever follows them.
sub vcl_recv {
  if (req.method != "GET" && req.method != "HEAD" && req.method != "POST" && req.method != "OPTIONS") {
    return (synth(405));
  }
  # Only a POST, of a subset, has a body, and says its length.
  if (req.http.Transfer-Encoding || (req.method == "POST" && std.integer(req.http.Content-Length, 0) > 65536)
      || (req.method != "POST" && req.http.Content-Length && req.http.Content-Length != "0")) {
    return (synth(413));
  }
  if (local.socket == "orders") {
    # The gatekeeper. What authenticates users belongs here. Of what they send, these parameters are passed on as they
    # are; all others are dropped. The server decodes each once, and refuses one that occurs twice.
    if (req.url !~ "^/orders(\?|$)") {
      return (synth(404));
    }
    set req.url = regsub(req.url, "^/orders\??", "");
    set req.url = regsuball(req.url, "(^|&)(?!(offset|handle|expired_handle|live|cursor|live_sse|cuts|log|subset__[a-z_]+|cache-buster)=)[^&]*", "");
    set req.url = "/v1/shape?shape=orders&" + regsub(req.url, "^&+", "");
  } else if (req.url !~ "^/v1/shape(\?|$)") {
    return (synth(404));
  }
  set req.http.Host = "localhost";
  unset req.http.Cookie;
  unset req.http.Authorization;
  # What is never kept need not be waited for: a POST, events, and for clients without an offset, rows if they were told to
  # begin again, and subsets.
  if (req.method == "POST" || req.method == "OPTIONS" || req.url ~ "[?&](experimental_)?live_sse=true"
      || (req.url ~ "[?&]offset=(-1|now)(&|$)" && req.url ~ "[?&]((expired_)?handle=|subset__)")) {
    return (pass);
  }
  return (hash);
}

sub vcl_hash {
  hash_data(req.url);
  return (lookup);
}

sub vcl_backend_response {
  # A 409 says how long it may be kept, for which Varnish does not look.
  if (beresp.status == 409 && beresp.http.Cache-Control ~ "max-age=5") {
    set beresp.ttl = 5s;
  }
  if (beresp.ttl <= 0s || beresp.http.Cache-Control ~ "no-store") {
    # For so long those who ask for the same do not wait for each other, although this answer is not kept.
    set beresp.uncacheable = true;
    set beresp.ttl = 1s;
  }
  # Rows get several times smaller, and are kept so. Events have no length.
  set beresp.do_gzip = std.integer(beresp.http.Content-Length, 0) > 1000;
  return (deliver);
}
