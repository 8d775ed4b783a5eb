{{/* The ports of the status by the programs' order, as flushtracker.yaml has them from `status.listen` on. */}}
{{- define "flushtracker.ports" -}}
{track: 9464, capture: 9465, write: 9466, snapshot: 9467, serve: 9468, sink: 9469}
{{- end }}

{{/* The programs that run all the time: what flushtracker.yaml says by `false`, by the settings of snapshots, and sinks if it has any. */}}
{{- define "flushtracker.programs" -}}
{{- $config := .Values.config }}
{{- $write := $config.write | default dict }}
{{- $snapshot := $config.snapshot | default dict }}
{{- $byWrite := not (or (eq (toString $config.write) "false") (eq (toString $write.snapshot) "manual") (eq (toString $snapshot.into) "kafka")) }}
{{- $programs := list }}
{{- range list "capture" "track" "write" "snapshot" "serve" "sink" }}
{{- if eq (toString (get $config .)) "false" }}
{{- else if and (eq . "sink") (not $config.sink) }}
{{- else if and (eq . "snapshot") (or $byWrite (eq ($snapshot.trigger | default "available_now") "available_now")) }}
{{- else }}
{{- $programs = append $programs . }}
{{- end }}
{{- end }}
{{- toJson $programs }}
{{- end }}

{{/* flushtracker.yaml: the four lines, the other sections as they are, and where each program's status is reached. */}}
{{- define "flushtracker.file" -}}
{{- $ports := include "flushtracker.ports" . | fromYaml }}
{{- $urls := dict }}
{{- range include "flushtracker.programs" . | fromJsonArray }}
{{- $_ := set $urls . (printf "http://%s-%s:%v" $.Release.Name . (get $ports .)) }}
{{- end }}
{{- $file := dict "postgres" .Values.postgres "kafka" .Values.kafka "storage" .Values.storage }}
{{- $_ := set $file "shapes" "/etc/flushtracker-shapes/shapes.yaml" }}
{{- range $section, $keys := .Values.config }}
{{- $_ := set $file $section $keys }}
{{- end }}
{{- $_ := set $file "status" (merge (dict "urls" $urls) .Values.config.status) }}
{{- toYaml $file }}
{{- end }}
