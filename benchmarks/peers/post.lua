-- wrk: POST the file named by WRK_BODY with the headers of WRK_HEADERS ("Name: value|Name: value"); figures as one line.
local file = io.open(os.getenv("WRK_BODY"), "rb")
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
for header in string.gmatch(os.getenv("WRK_HEADERS"), "[^|]+") do
  local name, value = string.match(header, "^([^:]+):%s*(.*)$")
  wrk.headers[name] = value
end
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("FIGURES %d %.6f %d %d %d %d\n", summary.requests, summary.duration / 1e6,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), e.status + e.connect + e.read + e.write + e.timeout))
end
